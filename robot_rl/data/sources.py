"""Sources of an update's transitions: replays at fixed shares, and demonstrations as chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from robot_rl.data.replay import NEXT, Batch, Replay, Sampling

GOAL = "goal."
"""Prefix of a sample's columns for the observation in which its goal is achieved."""
Share = tuple[Replay, int]
"""A replay and its number of transitions per batch."""


def sample_batches(sources: Sequence[Share], batches: int, how: Sampling, rng: torch.Generator) -> list[Batch]:
    """Sample several batches at once, `count` transitions of each (replay, count): the cost is per call."""
    parts = [
        {k: v.unflatten(0, (batches, count)) for k, v in replay.sample(batches * count, how, rng).items()}
        for replay, count in sources
        if count
    ]
    mixed = {k: torch.cat([p[k] for p in parts], 1) for k in parts[0]}
    return [{k: v[i] for k, v in mixed.items()} for i in range(batches)]


@dataclass
class Demonstrations:
    """Episodes laid end to end, sampled as an observation and the chunk of actions that follows it."""

    columns: dict[str, Tensor]
    """Observed columns (N, ...) and `action` (N, A) in [-1, 1]."""
    starts: Tensor
    """(E,) first row of each episode"""
    lengths: Tensor
    """(E,)"""

    @classmethod
    def of(cls, episodes: Sequence[dict[str, Tensor]], device: torch.device | str = "cpu") -> Self:
        """Concatenate episodes; each holds observed columns and `action` with T rows."""
        names = [name for name in episodes[0] if name == "action" or name.startswith("observation.")]
        lengths = torch.tensor([len(e["action"]) for e in episodes])
        columns = {k: torch.cat([e[k][: len(e["action"])] for e in episodes]).to(device) for k in names}
        return cls(columns, (torch.cumsum(lengths, 0) - lengths).to(device), lengths.to(device))

    def __len__(self) -> int:
        return len(self.columns["action"])

    @cached_property
    def last(self) -> Tensor:
        """The last row of each row's episode, (N,)."""
        return torch.repeat_interleave(self.starts + self.lengths - 1, self.lengths)

    @cached_property
    def _every(self) -> Tensor:
        return torch.arange(len(self), device=self.starts.device)

    def rows(self, horizon: int) -> Tensor:
        """Return the rows (N, horizon) of the actions after each row; the last action of an episode is repeated."""
        rows = self._every[:, None] + torch.arange(horizon, device=self._every.device)
        return torch.minimum(rows, self.last[:, None])

    def draw(self, count: int, rng: torch.Generator, weights: Tensor | None = None) -> Tensor:
        """Draw rows (count,), uniformly or in proportion to weights (N,)."""
        if weights is None:
            return self._indices(count, len(self), rng)
        ends = weights.double().cumsum(0)
        at = torch.rand(count, generator=rng, dtype=torch.double).to(ends.device) * ends[-1]
        return torch.searchsorted(ends, at).clamp_max(len(self) - 1)

    def _indices(self, count: int, below: int, rng: torch.Generator) -> Tensor:
        return torch.randint(0, below, (count,), generator=rng).to(self.starts.device)

    def sample(self, count: int, rows: Tensor, rng: torch.Generator, weights: Tensor | None = None) -> Batch:
        """Draw `count` rows: observed columns (B, ...) and `action` (B, horizon, A); `rows` is of the method."""
        return self._at(self.draw(count, rng, weights), rows)

    def _at(self, pick: Tensor, rows: Tensor) -> Batch:
        batch = {name: values[pick] for name, values in self.columns.items()}
        return batch | {"action": self.columns["action"][rows[pick]]}


@dataclass
class Hindsight(Demonstrations):
    """The same, with the observation that follows (`next.*`) and a later one of the episode as a goal (`goal.*`;
    Andrychowicz et al. 2017, arXiv 1707.01495)."""

    discount: float = 0.99
    """Goals are 1 / (1 - discount) steps ahead on average (geometric), at most at the episode's end."""

    @cached_property
    def _moving(self) -> Tensor:
        """The rows that another one follows."""
        return (self._every < self.last).nonzero()[:, 0]

    def sample(self, count: int, rows: Tensor, rng: torch.Generator, weights: Tensor | None = None) -> Batch:
        pick = self._moving[self._indices(count, len(self._moving), rng)]
        u = torch.rand(count, generator=rng).to(pick.device)
        ahead = 1 + (u.clamp_min(1e-12).log() / math.log(self.discount)).long()
        batch = self._at(pick, rows)
        for prefix, at in ((NEXT, pick + 1), (GOAL, torch.minimum(pick + ahead, self.last[pick]))):
            batch |= {prefix + name: values[at] for name, values in self.columns.items() if name != "action"}
        return batch
