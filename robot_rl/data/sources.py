"""Sources of an update's transitions: replays at fixed shares, and demonstrations as chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.data.replay import Batch, Replay, Sampling

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
    def of(cls, episodes: Sequence[dict[str, Tensor]], device: torch.device | str = "cpu") -> Demonstrations:
        """Concatenate episodes; each holds observed columns and `action` with T rows."""
        names = [name for name in episodes[0] if name == "action" or name.startswith("observation.")]
        lengths = torch.tensor([len(e["action"]) for e in episodes])
        columns = {k: torch.cat([e[k][: len(e["action"])] for e in episodes]).to(device) for k in names}
        return cls(columns, (torch.cumsum(lengths, 0) - lengths).to(device), lengths.to(device))

    def __len__(self) -> int:
        return len(self.columns["action"])

    def rows(self, horizon: int) -> Tensor:
        """Return the rows (N, horizon) of the actions after each row; the last action of an episode is repeated."""
        count, device = len(self), self.starts.device
        episode = torch.repeat_interleave(torch.arange(len(self.starts), device=device), self.lengths)
        last = (self.starts + self.lengths - 1)[episode]
        rows = torch.arange(count, device=device)[:, None] + torch.arange(horizon, device=device)
        return torch.minimum(rows, last[:, None])

    def draw(self, count: int, rng: torch.Generator, weights: Tensor | None = None) -> Tensor:
        """Draw rows (count,), uniformly or in proportion to weights (N,)."""
        if weights is None:
            return torch.randint(0, len(self), (count,), generator=rng).to(self.starts.device)
        ends = weights.double().cumsum(0)
        at = torch.rand(count, generator=rng, dtype=torch.double).to(ends.device) * ends[-1]
        return torch.searchsorted(ends, at).clamp_max(len(self) - 1)

    def sample(self, pick: Tensor, rows: Tensor) -> Batch:
        """Return the rows `pick` (B,): observed columns (B, ...) and `action` (B, horizon, A)."""
        batch = {name: values[pick] for name, values in self.columns.items()}
        return batch | {"action": self.columns["action"][rows[pick]]}
