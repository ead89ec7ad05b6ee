"""Sources of training batches: replays at fixed shares, demonstrations as chunks, and whole episodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from robot_rl.data.replay import NEXT, Batch, Replay, Sampling
from robot_rl.util.errors import ConfigError

GOAL = "goal."
"""Prefix of a sample's columns for the observation of its goal."""
FUTURE = "future."
"""Prefix of a sample's columns for the observations after each action of its chunk."""
SEEN, LATER = "seen.", "later."
"""Prefixes of a sample's columns for observations without an action, and for those that follow them."""
Share = tuple[Replay, int]
"""Replay and its number of transitions per batch."""


def sample_batches(sources: Sequence[Share], batches: int, how: Sampling, rng: torch.Generator) -> list[Batch]:
    """Sample `batches` batches, each with `count` transitions of every (replay, count); cheaper than batch by batch."""
    parts = [
        {k: v.unflatten(0, (batches, count)) for k, v in replay.sample(batches * count, how, rng).items()}
        for replay, count in sources
        if count
    ]
    mixed = {k: torch.cat([p[k] for p in parts], 1) for k in parts[0]}
    return [{k: v[i] for k, v in mixed.items()} for i in range(batches)]


@dataclass
class Demonstrations:
    """Concatenated episodes; a sample is an observation and the chunk of actions that follows the observation."""

    columns: dict[str, Tensor]
    """Observed columns (N, ...) and `action` (N, A) in [-1, 1]."""
    starts: Tensor
    """(E,) first row of each episode in `columns`."""
    lengths: Tensor
    """(E,) number of steps of each episode."""

    @classmethod
    def of(cls, episodes: Sequence[dict[str, Tensor]], device: torch.device | str = "cpu") -> Self:
        """Concatenate episodes; an episode of T steps has `action` with T rows, other columns with at least T rows."""
        names = [name for name in episodes[0] if name == "action" or name.startswith("observation.")]
        lengths = torch.tensor([len(e["action"]) for e in episodes])
        columns = {k: torch.cat([e[k][: len(e["action"])] for e in episodes]).to(device) for k in names}
        return cls(columns, (torch.cumsum(lengths, 0) - lengths).to(device), lengths.to(device))

    def __len__(self) -> int:
        return len(self.columns["action"])

    @cached_property
    def last(self) -> Tensor:
        """(N,) For every row, the last row of its episode."""
        return torch.repeat_interleave(self.starts + self.lengths - 1, self.lengths)

    @cached_property
    def _every(self) -> Tensor:
        return torch.arange(len(self), device=self.starts.device)

    def rows(self, horizon: int) -> Tensor:
        """Return the rows (N, horizon) of the chunk from each row on; the episode's last row fills up short chunks."""
        rows = self._every[:, None] + torch.arange(horizon, device=self._every.device)
        return torch.minimum(rows, self.last[:, None])

    def draw(self, count: int, rng: torch.Generator, weights: Tensor | None = None) -> Tensor:
        """Draw rows (count,), uniformly if `weights` is None, else in proportion to weights (N,)."""
        if weights is None:
            return self._indices(count, len(self), rng)
        ends = weights.double().cumsum(0)
        at = torch.rand(count, generator=rng, dtype=torch.double).to(ends.device) * ends[-1]
        return torch.searchsorted(ends, at).clamp_max(len(self) - 1)

    @cached_property
    def moving(self) -> Tensor:
        """All rows except the last row of each episode. ConfigError if there are none."""
        rows = (self._every < self.last).nonzero()[:, 0]
        if not len(rows):
            raise ConfigError("every episode of the dataset has one step, so none shows a goal; record longer episodes")
        return rows

    def _indices(self, count: int, below: int, rng: torch.Generator) -> Tensor:
        return torch.randint(0, below, (count,), generator=rng).to(self.starts.device)

    def sample(self, count: int, rows: Tensor, rng: torch.Generator, weights: Tensor | None = None) -> Batch:
        """Draw `count` samples: observed columns (B, ...) and `action` (B, horizon, A).

        `rows` (N, horizon): result of the method `rows`.
        """
        return self._at(self.draw(count, rng, weights), rows)

    def _at(self, pick: Tensor, rows: Tensor) -> Batch:
        batch = {name: values[pick] for name, values in self.columns.items()}
        return batch | {"action": self.columns["action"][rows[pick]]}


@dataclass
class Hindsight(Demonstrations):
    """Demonstrations with the next observation (`next.*`) and a later observation of the episode as goal (`goal.*`).

    Hindsight goals as in Andrychowicz et al. 2017 (arXiv 1707.01495).
    """

    discount: float = 0.99
    """Sets the distance of goals: 1 / (1 - discount) steps on average (geometric), up to the end of the episode."""

    def sample(self, count: int, rows: Tensor, rng: torch.Generator, weights: Tensor | None = None) -> Batch:
        return self._in_hindsight(self.moving[self._indices(count, len(self.moving), rng)], rows, rng)

    def _in_hindsight(self, pick: Tensor, rows: Tensor, rng: torch.Generator) -> Batch:
        u = torch.rand(len(pick), generator=rng).to(pick.device)
        ahead = 1 + (u.clamp_min(1e-12).log() / math.log(self.discount)).long()
        batch = self._at(pick, rows)
        for prefix, at in ((NEXT, pick + 1), (GOAL, torch.minimum(pick + ahead, self.last[pick]))):
            batch |= {prefix + name: values[at] for name, values in self.columns.items() if name != "action"}
        return batch


@dataclass
class Futures(Hindsight):
    """Hindsight samples with the observations after each action of the chunk (`future.*`, (B, horizon, ...)). After the
    end of an episode, its last observation is repeated."""

    @property
    def steps(self) -> dict[str, Tensor]:
        """Return the columns (M, ...) of all rows that have a next row, and those of their next rows (`next.*`)."""
        after = {NEXT + name: values[self.moving + 1] for name, values in self.columns.items()}
        return {name: values[self.moving] for name, values in self.columns.items()} | after

    def sample(self, count: int, rows: Tensor, rng: torch.Generator, weights: Tensor | None = None) -> Batch:
        pick = self.moving[self._indices(count, len(self.moving), rng)]
        batch, at = self._in_hindsight(pick, rows, rng), torch.minimum(rows[pick] + 1, self.last[pick, None])
        return batch | {FUTURE + name: values[at] for name, values in self.columns.items() if name != "action"}


@dataclass
class Windows(Demonstrations):
    """Demonstrations as windows of an episode: columns (B, W, ...), `inside` (B, W), which marks the window's rows, and
    the observation in which the window ends as its goal (`goal.*`).

    Windows of play with hindsight goals as in Lynch et al. 2020 (arXiv 1903.01973).
    """

    shortest: int = 16
    """Steps from a window's first observation to its goal; less only where the episode ends sooner."""
    longest: int = 32

    def sample(self, count: int, rows: Tensor, rng: torch.Generator, weights: Tensor | None = None) -> Batch:
        first = self.moving[self._indices(count, len(self.moving), rng)]
        steps = self.shortest + self._indices(count, self.longest - self.shortest + 1, rng)
        goal = torch.minimum(first + steps, self.last[first])
        at = first[:, None] + torch.arange(self.longest, device=first.device)
        inside, at = at < goal[:, None], torch.minimum(at, goal[:, None] - 1)
        batch = {name: values[at] for name, values in self.columns.items()} | {"inside": inside}
        return batch | {GOAL + name: values[goal] for name, values in self.columns.items() if name != "action"}


@dataclass
class Observed(Demonstrations):
    """Demonstrations followed by episodes of which only the observations are read.

    A sample has the columns of demonstrations, and `seen.*` (B, ...): observations drawn from all episodes, with
    `later.*` (B, K, ...): what follows them in their episodes.
    """

    demonstrated: int = 0
    """Number of first rows that are demonstrated; their actions alone are sampled."""
    ahead: tuple[int, ...] = ()
    """Steps from each of the K later observations back to the seen one; (): no observations without actions are
    sampled."""

    def sample(self, count: int, rows: Tensor, rng: torch.Generator, weights: Tensor | None = None) -> Batch:
        batch = self._at(self._indices(count, self.demonstrated, rng), rows)
        if not self.ahead:
            return batch
        pick = self._indices(count, len(self), rng)
        at = torch.minimum(pick[:, None] + torch.tensor(self.ahead, device=pick.device), self.last[pick][:, None])
        for prefix, drawn in ((SEEN, pick), (LATER, at)):
            batch |= {prefix + name: values[drawn] for name, values in self.columns.items() if name != "action"}
        return batch


@dataclass
class Trajectories:
    """Episodes of one round as decisions, for learners that compare whole episodes."""

    columns: dict[str, Tensor]
    """Columns (N, ...) with one row per decision, in the order of time."""
    episode: Tensor
    """(N,) episode number of each decision"""
    success: Tensor
    """(E,) bool success of each episode."""
    steps: Tensor
    """(E,) length of each episode, control periods."""
    group: Tensor
    """(E,) group number of each episode."""

    def total(self, values: Tensor) -> Tensor:
        """Sum values (N,) over the decisions of each episode; return (E,)."""
        return values.new_zeros(len(self.success)).index_add(0, self.episode, values)
