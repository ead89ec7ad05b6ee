"""Fitting a success classifier: frame labels, the held-out split, learning, claims and the threshold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.data import Dataset, DatasetWriter, EpisodeData, Feature
from robot_rl.rewards import fitting
from robot_rl.rewards.classifier import load_classifier, save_classifier
from robot_rl.rewards.fitting import LEAST, MarkedEpisode, fit, held_out, labelled, marked_episodes
from robot_rl.util.errors import ConfigError

Build = Callable[..., Any]


# ---- labels ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("marks", "hold", "margin", "labels", "earliest"), [
    ([0] * 7 + [1], 2, 4, [0, 0, 0, -1, -1, -1, 1, 1], 3),
    ([0] * 5, 2, 2, [0] * 5, None),
    ([0, 0, 0, 0, 1, 0, 1, 0], 1, 1, [0, 0, 0, -1, 1, -1, 1, -1], 3),
], ids=["success", "failure", "several marks"])  # fmt: skip
def test_labels_of_marked_frames(marks: list[int], hold: int, margin: int, labels: list[int], earliest: Any) -> None:
    result = labelled(torch.tensor(marks).bool(), hold, margin)
    assert result[0].tolist() == labels and result[1] == earliest


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 12))
def test_marks_are_positive_and_frames_before_the_margin_negative(marks: list[bool], hold: int, margin: int) -> None:
    labels, earliest = labelled(torch.tensor(marks), hold, margin)
    assert len(labels) == len(marks) and (earliest is None) == (not any(marks))
    if earliest is not None:
        first = marks.index(True)
        assert all(int(labels[k]) == 1 for k, mark in enumerate(marks) if mark)
        assert bool((labels[max(0, first - min(hold - 1, margin)) :] != 0).all())
        assert bool((labels[: min(earliest, max(0, first - hold + 1))] == 0).all())


def test_episodes_of_a_dataset_are_labelled(corner: Path) -> None:
    episodes = marked_episodes(Dataset(corner), 3, 0.5)
    assert sum(e.success for e in episodes) == 12 and {e.length for e in episodes} == {12}
    success = next(e for e in episodes if e.success)
    assert success.labels.tolist() == [0] * 6 + [-1] * 3 + [1] * 3 and success.earliest == 6
    assert success.rows(1).tolist() == [success.start + k for k in (9, 10, 11)]


def write(root: Path, key: str, dtype: str, *episodes: list[float], task: Any = "touch it") -> Dataset:
    """Write episodes with one column of marks."""
    features = {key: Feature(dtype, (1,)), "observation.state": Feature("float32", (1,))}
    with DatasetWriter.create(root, fps=10, features=features) as writer:
        for marks in episodes:
            columns = {key: np.array(marks, dtype), "observation.state": np.zeros((len(marks), 1), np.float32)}
            writer.add_episodes([EpisodeData(columns, task)])
    return Dataset(root)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_reward_of_0_and_1_marks_success_and_another_reward_does_not(tmp_path: Path, dtype: str) -> None:
    sparse = write(tmp_path / "sparse", "next.reward", dtype, [0, 0, 1], [0, 0, 0])
    assert [e.success for e in marked_episodes(sparse, 1, 0.1)] == [True, False]
    dense = write(tmp_path / "dense", "next.reward", dtype, [-3, -2, -1], [-3, -3, -3])
    with pytest.raises(ConfigError, match=r"marks no success.*next\.reward"):
        marked_episodes(dense, 1, 0.1)


@pytest.mark.parametrize(("mark", "missing"), [(0, "success"), (1, "failure")])
def test_one_outcome_or_changing_instructions_are_refused(tmp_path: Path, mark: int, missing: str) -> None:
    data = write(tmp_path / "data", "next.success", "bool", *[[0, mark]] * 4)
    with pytest.raises(ConfigError, match=f"none of the 4 episodes .* is a {missing}.*--keep-failures"):
        marked_episodes(data, 3, 0.5)
    data = write(tmp_path / "changing", "next.success", "bool", [0, 1], task=["touch it", "lift it"])
    with pytest.raises(ConfigError, match="changes in episode 0.*without --changes"):
        marked_episodes(data, 3, 0.5)


# ---- the split ---------------------------------------------------------------------------------------------------
def episodes(successes: int, failures: int) -> list[MarkedEpisode]:
    won = [MarkedEpisode(k, torch.ones(1, dtype=torch.int8), 0, "x") for k in range(successes)]
    return won + [MarkedEpisode(100 + k, torch.zeros(1, dtype=torch.int8), None, "x") for k in range(failures)]


@given(st.integers(20, 60), st.integers(20, 60), st.integers(0, 5))
def test_the_split_holds_out_the_same_share_of_both_outcomes(won: int, lost: int, seed: int) -> None:
    kept, out = held_out(episodes(won, lost), 0.3, seed)
    assert {e.start for e in kept}.isdisjoint(e.start for e in out) and len(kept) + len(out) == won + lost
    assert sum(e.success for e in out) == round(0.3 * won) and sum(not e.success for e in out) == round(0.3 * lost)
    assert [e.start for e in held_out(episodes(won, lost), 0.3, seed)[1]] == [e.start for e in out]


@pytest.mark.parametrize("failures", [1, 14])
def test_too_few_held_out_episodes_are_refused_with_the_required_number(failures: int) -> None:
    with pytest.raises(ConfigError, match=f"{failures} failures are too few.*at least {LEAST} must.*record 17"):
        held_out(episodes(40, failures), 0.3, 0)


# ---- fitting -----------------------------------------------------------------------------------------------------
def test_a_visible_sign_of_success_is_learned_reproducibly(corner: Path, quick: Build, tmp_path: Path) -> None:
    classifier = fit(Dataset(corner), quick())
    assert classifier.reaches_bar and classifier.measured.episodes == 12
    assert classifier.instructions == ("light the corner",)
    assert classifier.rate == 10.0 and classifier.threshold in fitting.THRESHOLDS
    save_classifier(classifier, tmp_path / "classifier")
    assert load_classifier(tmp_path / "classifier").measured == classifier.measured
    weights, again = classifier.network.parameters(), fit(Dataset(corner), quick()).network.parameters()
    assert all(torch.equal(a, b) for a, b in zip(weights, again, strict=True))
    whole = fit(Dataset(corner), quick(margin=100.0, steps=2))
    assert whole.measured.successes == 6, "a margin longer than successes leaves negatives from failures"


def test_a_classifier_of_random_marks_stays_below_its_bar(marked_dataset: Build, quick: Build, tmp_path: Path) -> None:
    assert not fit(Dataset(marked_dataset(tmp_path / "dataset", shuffled=True)), quick()).reaches_bar


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_state_is_an_optional_normalized_input(marked_dataset: Any, quick: Any, tmp_path: Path, dtype: str) -> None:
    classifier = fit(Dataset(marked_dataset(tmp_path / "data", dtype=dtype)), quick(state=True, steps=2))
    assert classifier.network.reads.observation == 2
    assert float(classifier.network.normalizer.std.min()) > 0.1


def test_missing_pictures_or_cameras_are_refused(corner: Path, marked_dataset: Any, quick: Any, tmp_path: Path) -> None:
    blind = marked_dataset(tmp_path / "blind", pictures=False)
    with pytest.raises(ConfigError, match="no pictures; record one with a camera"):
        fit(Dataset(blind), quick())
    with pytest.raises(ConfigError, match="no camera 'frnt'; did you mean front"):
        fit(Dataset(corner), quick(cameras=("frnt",)))


# ---- claims ------------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 5), st.floats(0.01, 0.99))
def test_the_level_exceeds_a_threshold_after_enough_frames(values: list[float], hold: int, threshold: float) -> None:
    above, streak = fitting.level(torch.tensor(values, dtype=torch.float64), hold) > threshold, 0
    for k, value in enumerate(values):
        streak = streak + 1 if value > threshold else 0
        assert bool(above[k]) == (streak >= hold)


def episode(earliest: int | None) -> MarkedEpisode:
    return MarkedEpisode(0, torch.zeros(4, dtype=torch.int8), earliest, "x")


def test_only_claims_from_the_margin_on_are_right_and_define_the_best_threshold() -> None:
    def claim(frame: int | None) -> torch.Tensor:
        return torch.tensor([0.9 if k == frame else 0.1 for k in range(4)])

    cases = [(episode(2), claim(2)), (episode(2), claim(1)), (episode(2), claim(None))]
    cases += [(episode(None), claim(3)), (episode(None), claim(None))]
    counts = fitting.measure([levels for _, levels in cases], [each for each, _ in cases], 0.5)
    assert (counts.episodes, counts.successes, counts.claims, counts.right) == (5, 3, 3, 1)
    # The best threshold is the middle of those whose score is within one episode of the best.
    won, lost = [torch.tensor([0.0, 0.0, 0.96, 0.96])] * 10, [torch.tensor([0.0, 0.82, 0.0, 0.0])] * 3
    assert fitting.best_threshold(won + lost, [episode(2)] * 10 + [episode(None)] * 3) == 0.93, "of 0.85 to 0.95"
    assert fitting.best_threshold(won + lost[:1], [episode(2)] * 10 + [episode(None)]) == 0.85, "of 0.5 to 0.95"
