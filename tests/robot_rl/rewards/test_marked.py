"""Which frames of a recording show success, which do not, and which are left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.data import Dataset, DatasetWriter, EpisodeData, Feature
from robot_rl.rewards.fitting import LEAST, MarkedEpisode, held_out, labelled, marked_episodes
from robot_rl.util.errors import ConfigError

Build = Callable[..., Any]


def test_frames_up_to_a_mark_show_success_those_before_are_left_out_and_earlier_ones_do_not() -> None:
    labels, earliest = labelled(torch.tensor([0] * 7 + [1]).bool(), hold=2, margin=4)
    assert labels.tolist() == [0, 0, 0, -1, -1, -1, 1, 1] and earliest == 3


def test_a_failure_shows_no_success_anywhere() -> None:
    labels, earliest = labelled(torch.zeros(5).bool(), hold=2, margin=2)
    assert labels.tolist() == [0] * 5 and earliest is None


def test_what_follows_the_first_mark_is_no_failure() -> None:
    labels, _ = labelled(torch.tensor([0, 0, 0, 0, 1, 0, 1, 0]).bool(), hold=1, margin=1)
    assert labels.tolist() == [0, 0, 0, -1, 1, -1, 1, -1]


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 12))
def test_every_mark_shows_success_and_nothing_near_the_first_one_shows_none(
    marks: list[bool], hold: int, margin: int
) -> None:
    labels, earliest = labelled(torch.tensor(marks), hold, margin)
    assert len(labels) == len(marks) and (earliest is None) == (not any(marks))
    if earliest is not None:
        first = marks.index(True)
        assert all(int(labels[k]) == 1 for k, mark in enumerate(marks) if mark)
        assert bool((labels[max(0, first - min(hold - 1, margin)) :] != 0).all())
        assert bool((labels[: min(earliest, max(0, first - hold + 1))] == 0).all())


def test_episodes_of_a_dataset(corner: Path) -> None:
    episodes = marked_episodes(Dataset(corner), 3, 0.5)
    assert sum(e.success for e in episodes) == 12 and {e.length for e in episodes} == {12}
    won = next(e for e in episodes if e.success)
    assert won.labels.tolist() == [0] * 6 + [-1] * 3 + [1] * 3 and won.earliest == 6
    assert won.rows(1).tolist() == [won.start + k for k in (9, 10, 11)]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_reward_of_0_and_1_marks_success_too(tmp_path: Path, dtype: str) -> None:
    """So do datasets of LeRobot's own robots; a reward of another kind marks nothing."""
    features = {"next.reward": Feature(dtype, (1,)), "observation.state": Feature("float32", (1,))}
    for name, rewards in (("marked", [[0, 0, 1], [0, 0, 0]]), ("graded", [[-3, -2, -1], [-3, -3, -3]])):
        with DatasetWriter.create(tmp_path / name, fps=10, features=features) as writer:
            for each in rewards:
                columns = {"next.reward": np.array(each, dtype), "observation.state": np.zeros((3, 1), np.float32)}
                writer.add_episode(columns, "touch it")
    assert [e.success for e in marked_episodes(Dataset(tmp_path / "marked"), 1, 0.1)] == [True, False]
    with pytest.raises(ConfigError, match=r"marks no success.*next\.reward"):
        marked_episodes(Dataset(tmp_path / "graded"), 1, 0.1)


@pytest.mark.parametrize(("missing", "what"), [("successes", "success"), ("failures", "failure")])
def test_a_dataset_without_one_outcome_is_refused_with_the_remedy(
    tmp_path: Path, marked_dataset: Build, missing: str, what: str
) -> None:
    counts = {"successes": 4, "failures": 4} | {missing: 0}
    root = marked_dataset(tmp_path / "dataset", **counts)
    with pytest.raises(ConfigError, match=f"none of the 4 episodes .* is a {what}.*--keep-failures"):
        marked_episodes(Dataset(root), 3, 0.5)


def test_episodes_whose_instruction_changes_are_refused(tmp_path: Path) -> None:
    features = {"next.success": Feature("bool", (1,)), "observation.state": Feature("float32", (1,))}
    columns = {"next.success": np.array([False, True]), "observation.state": np.zeros((2, 1), np.float32)}
    with DatasetWriter.create(tmp_path / "told", fps=10, features=features) as writer:
        writer.add_episodes([EpisodeData(columns, ["touch it", "lift it"])])
    with pytest.raises(ConfigError, match="changes in episode 0.*without --changes"):
        marked_episodes(Dataset(tmp_path / "told"), 3, 0.5)


def episodes(successes: int, failures: int) -> list[MarkedEpisode]:
    won = [MarkedEpisode(k, torch.ones(1, dtype=torch.int8), 0, "x") for k in range(successes)]
    return won + [MarkedEpisode(100 + k, torch.zeros(1, dtype=torch.int8), None, "x") for k in range(failures)]


@given(st.integers(20, 60), st.integers(20, 60), st.integers(0, 5))
def test_the_same_share_of_either_outcome_is_held_out_and_never_fitted_to(won: int, lost: int, seed: int) -> None:
    kept, out = held_out(episodes(won, lost), 0.3, seed)
    assert {e.start for e in kept}.isdisjoint(e.start for e in out) and len(kept) + len(out) == won + lost
    assert sum(e.success for e in out) == round(0.3 * won) and sum(not e.success for e in out) == round(0.3 * lost)
    assert [e.start for e in held_out(episodes(won, lost), 0.3, seed)[1]] == [e.start for e in out]


@pytest.mark.parametrize("failures", [1, 4, 14])
def test_too_few_held_out_episodes_are_refused_with_the_number_that_is_needed(failures: int) -> None:
    with pytest.raises(ConfigError, match=f"{failures} failures are too few.*record 17") as said:
        held_out(episodes(40, failures), 0.3, 0)
    assert str(LEAST) in str(said.value)
