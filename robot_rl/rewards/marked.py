"""Frames of recorded episodes that show success, and frames that do not, by the marks in the dataset."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.dataset import Dataset
from robot_rl.data.recording import successes_of
from robot_rl.util.errors import ConfigError

LEAST = 5
"""Episodes of each outcome that must be held out: of fewer, no rate says anything."""


@dataclass(frozen=True)
class MarkedEpisode:
    """One recorded episode."""

    start: int
    """Row of its first frame."""
    labels: Tensor
    """(T,) int8: 1 shows success, 0 does not, -1 is left out."""
    earliest: int | None
    """First frame in which success may be claimed; None for a failed episode."""
    instruction: str

    @property
    def length(self) -> int:
        return len(self.labels)

    @property
    def success(self) -> bool:
        return self.earliest is not None

    def rows(self, label: int) -> Tensor:
        """Return the rows of the dataset that have a label."""
        return self.start + (self.labels == label).nonzero()[:, 0]

    def before(self, frames: int) -> Tensor:
        """Return the rows of the last frames that do not show success before it came; none of a failed episode."""
        labels = self.labels[: self.earliest or 0]
        return self.start + (labels == 0).nonzero()[-frames:, 0]


def labelled(marks: Tensor, hold: int, margin: int) -> tuple[Tensor, int | None]:
    """Return the labels (T,) of an episode's frames, and the first frame in which success may be claimed.

    Args:
        marks: (T,) bool, see `successes_of`. A row holds what was seen before its step, and the mark after it: where a
            test that holds for some frames set it, or a person, the frames before the first mark show the same.
        hold: frames that show success, up to the first mark.
        margin: frames before the first mark after which nothing can be said: only earlier ones show no success.

    >>> labelled(torch.tensor([0, 0, 0, 0, 0, 1]).bool(), hold=2, margin=3)
    (tensor([ 0,  0, -1, -1,  1,  1], dtype=torch.int8), 2)
    """
    labels = torch.zeros(len(marks), dtype=torch.int8)
    marked = marks.nonzero()[:, 0]
    if not len(marked):
        return labels, None
    first = int(marked[0])
    earliest = max(0, first - margin)
    labels[earliest:] = -1
    labels[max(0, first - hold + 1) : first + 1] = 1
    labels[marked] = 1
    return labels, earliest


def marked_episodes(dataset: Dataset, hold: int, margin: float) -> list[MarkedEpisode]:
    """Return the episodes of a dataset; `margin` in s, the rest as in `labelled`. ConfigError if either outcome is
    missing."""
    marks = successes_of(dataset)
    if marks is None:
        raise ConfigError(
            f"{dataset.root} marks no success: it has no next.success, nor a next.reward of 0 and 1; record one with "
            "`robot-rl collect TASK --keep-failures`, or `robot-rl record TASK --keep-failures`"
        )
    found = []
    for episode in dataset.episodes:
        rows = marks[episode.start : episode.start + episode.length]
        labels, earliest = labelled(rows, hold, round(margin * dataset.fps))
        if len(episode.tasks) > 1:
            raise ConfigError(
                f"what is asked changes in episode {episode.index} of {dataset.root}, and a classifier judges one "
                "instruction in an episode; record without --changes"
            )
        found.append(MarkedEpisode(episode.start, labels, earliest, episode.task))
    won = sum(episode.success for episode in found)
    for count, what in ((won, "success"), (len(found) - won, "failure")):
        if not count:
            raise ConfigError(
                f"none of the {len(found)} episodes of {dataset.root} is a {what}, and a classifier is learned from "
                "both: record some, with --keep-failures"
            )
    return found


def held_out(episodes: list[MarkedEpisode], share: float, seed: int) -> tuple[list[MarkedEpisode], list[MarkedEpisode]]:
    """Return the episodes to fit to and those held out: a share of the successes, and of the failures, at random.

    ConfigError where fewer than `LEAST` of either are held out.
    """
    rng = torch.Generator().manual_seed(seed)
    kept: list[MarkedEpisode] = []
    out: list[MarkedEpisode] = []
    for success, what in ((True, "successes"), (False, "failures")):
        same = [episode for episode in episodes if episode.success == success]
        count = round(share * len(same))
        if count < LEAST or count == len(same):
            needed = max(LEAST + 1, round(LEAST / share)) if 0 < share < 1 else LEAST + 1
            raise ConfigError(
                f"{len(same)} {what} are too few: {count} of them would be held out and {len(same) - count} fitted to, "
                f"and at least {LEAST} must be held out; record {needed}, or change --held-out"
            )
        order = torch.randperm(len(same), generator=rng).tolist()
        out += [same[k] for k in order[:count]]
        kept += [same[k] for k in order[count:]]
    return kept, out
