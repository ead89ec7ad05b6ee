"""Fit a classifier: it learns what there is to learn, and what there is not does not pass the bar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.data import Dataset
from robot_rl.rewards.classifier import load_classifier, save_classifier
from robot_rl.rewards.fitting import THRESHOLDS, MarkedEpisode, best_threshold, fit, level, measure
from robot_rl.util.errors import ConfigError

Build = Callable[..., Any]


def test_a_square_that_means_success_is_learned(corner: Path, quick: Build, tmp_path: Path) -> None:
    classifier = fit(Dataset(corner), quick())
    assert classifier.pays and classifier.measured.episodes == 12 and classifier.instructions == ("light the corner",)
    assert classifier.rate == 10.0 and classifier.threshold in THRESHOLDS
    save_classifier(classifier, tmp_path / "classifier")
    assert load_classifier(tmp_path / "classifier").measured == classifier.measured
    again = fit(Dataset(corner), quick())
    assert all(
        torch.equal(a, b) for a, b in zip(classifier.network.parameters(), again.network.parameters(), strict=True)
    )


def test_marks_that_mean_nothing_do_not_pass(marked_dataset: Build, quick: Build, tmp_path: Path) -> None:
    root = marked_dataset(tmp_path / "dataset", shuffled=True)
    classifier = fit(Dataset(root), quick())
    assert not classifier.pays
    save_classifier(classifier, tmp_path / "classifier")
    with pytest.raises(ConfigError, match="may not pay rewards"):
        load_classifier(tmp_path / "classifier")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_state_is_read_on_request(marked_dataset: Build, quick: Build, tmp_path: Path, dtype: str) -> None:
    classifier = fit(Dataset(marked_dataset(tmp_path / "data", dtype=dtype)), quick(state=True, steps=2))
    assert classifier.network.reads.observation == 2
    assert float(classifier.network.normalizer.std.min()) > 0.1, "the state is normalized by the dataset's"


def test_a_dataset_without_pictures_and_an_unknown_camera_are_refused(
    corner: Path, marked_dataset: Build, quick: Build, tmp_path: Path
) -> None:
    blind = marked_dataset(tmp_path / "blind", pictures=False)
    with pytest.raises(ConfigError, match="no pictures; record one with a camera"):
        fit(Dataset(blind), quick())
    with pytest.raises(ConfigError, match="no camera 'frnt'; did you mean front"):
        fit(Dataset(corner), quick(cameras=("frnt",)))


def test_a_margin_that_leaves_no_failure_to_see_is_still_fitted_to_failed_episodes(corner: Path, quick: Build) -> None:
    assert fit(Dataset(corner), quick(margin=100.0, steps=2)).measured.successes == 6


# ---- claims ------------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 5), st.floats(0.01, 0.99))
def test_a_level_above_a_threshold_is_that_many_frames_above_it_in_a_row(
    values: list[float], hold: int, threshold: float
) -> None:
    above, streak = level(torch.tensor(values, dtype=torch.float64), hold) > threshold, 0
    for k, value in enumerate(values):
        streak = streak + 1 if value > threshold else 0
        assert bool(above[k]) == (streak >= hold)


def episode(earliest: int | None) -> MarkedEpisode:
    return MarkedEpisode(0, torch.zeros(4, dtype=torch.int8), earliest, "x")


def test_a_claim_counts_where_the_success_came_and_not_before() -> None:
    def claims_at(frame: int | None) -> torch.Tensor:
        return torch.tensor([0.9 if k == frame else 0.1 for k in range(4)])

    cases = [(episode(2), claims_at(2)), (episode(2), claims_at(1)), (episode(2), claims_at(None))]
    cases += [(episode(None), claims_at(3)), (episode(None), claims_at(None))]
    found = measure([levels for _, levels in cases], [each for each, _ in cases], 0.5)
    assert (found.episodes, found.successes, found.claims, found.right) == (5, 3, 3, 1)


def test_the_threshold_is_the_middle_of_those_that_are_as_good_but_for_one_episode() -> None:
    won, lost = [torch.tensor([0.0, 0.0, 0.96, 0.96])] * 10, [torch.tensor([0.0, 0.82, 0.0, 0.0])] * 3
    best = best_threshold(won + lost, [episode(2)] * 10 + [episode(None)] * 3)
    assert best == 0.93, "0.85, 0.9, 0.93 and 0.95 tell them apart"
    best = best_threshold(won + lost[:1], [episode(2)] * 10 + [episode(None)])
    assert best == 0.85, "with one wrong claim those from 0.5 on are as good"
