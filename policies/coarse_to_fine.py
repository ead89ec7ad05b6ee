"""Choose action bins by their values, coarse to fine: Seo et al. 2024, "Continuous Control with Coarse-to-fine
Reinforcement Learning" (CQN, 2407.07787).

At each level the network maps features, interval centres and the level to a distribution of returns for every bin of
every action dimension. Each dimension then zooms into its bin with the highest mean return.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Size, from_json, mlp
from policies.networks.bins import BinsConfig, BinsPolicy


@dataclass(frozen=True)
class Atoms:
    """Support of a categorical distribution of returns: `count` evenly spaced values."""

    count: int
    low: float
    high: float

    def mean(self, logits: Tensor) -> Tensor:
        """Return the mean returns (...) of distributions with logits (..., count)."""
        return (logits.softmax(-1) * torch.linspace(self.low, self.high, self.count, device=logits.device)).sum(-1)


class BinValues(nn.Module):
    """Dueling network (Wang et al. 2016): value + advantage - mean advantage, for each action dimension."""

    def __init__(self, features: int, actions: int, config: BinsConfig, atoms: int):
        super().__init__()
        self.actions, self.bins, self.levels = actions, config.bins, config.levels
        sizes = [features + actions + config.levels, *config.hidden]
        self.trunk = nn.Sequential(mlp(sizes, norm=True), nn.LayerNorm(sizes[-1], elementwise_affine=False), nn.SiLU())
        self.value, self.advantage = (nn.Linear(sizes[-1], actions * n * atoms) for n in (1, config.bins))
        for head in (self.value, self.advantage):  # all bins have equal values at first
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, features: Tensor, center: Tensor, level: Tensor) -> Tensor:
        """Return logits (N, A, bins, atoms) for features (N, F), interval centres (N, A) and levels (N,), long."""
        depth = nn.functional.one_hot(level, self.levels).to(features.dtype)
        h = self.trunk(torch.cat([features, center, depth], -1))
        value = self.value(h).view(len(h), self.actions, 1, -1)
        advantage = self.advantage(h).view(len(h), self.actions, self.bins, -1)
        return value + advantage - advantage.mean(2, keepdim=True)


class CoarseToFinePolicy(BinsPolicy):
    """Zoom into the highest-valued bin of every action dimension, level by level."""

    class_name = "coarse-to-fine"
    network: BinValues

    def __init__(self, size: Size, config: BinsConfig | None = None, atoms: Atoms | None = None):
        super().__init__(size, config or BinsConfig())
        self.atoms = atoms or Atoms(51, -1.0, 1.0)
        self.network = BinValues(self.encoder.size, size.action, self.config, self.atoms.count)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"atoms": asdict(self.atoms)}

    @classmethod
    def build(cls, description: dict[str, Any]) -> CoarseToFinePolicy:
        config, atoms = from_json(BinsConfig, description["config"]), from_json(Atoms, description["atoms"])
        return cls(Size.from_json(description["size"]), config, atoms)

    def logits(self, network: BinValues, features: Tensor, bins: Tensor) -> Tensor:
        """Return logits (B, L, A, bins, atoms) of all bins at every level; the chosen `bins` (B, L, A) set the interval
        of the next level."""
        levels = self.codec.levels
        center = self.codec.centers(bins)[:, :-1].flatten(0, 1)
        level = torch.arange(levels, device=bins.device).repeat(len(bins))
        return network(features.repeat_interleave(levels, 0), center, level).unflatten(0, (len(bins), levels))

    def choose(self, features: Tensor, rng: torch.Generator, explore: bool = False) -> Tensor:
        return self.greedy(self.network, features)

    def greedy(self, network: BinValues, features: Tensor) -> Tensor:
        """Return a network's highest-valued bins (B, L, A) for features (B, F)."""
        bins = torch.zeros(len(features), self.codec.levels, self.size.action, dtype=torch.long, device=features.device)
        for level in range(self.codec.levels):
            center = self.codec.centers(bins)[:, level]
            depth = torch.full((len(features),), level, device=features.device)
            bins[:, level] = self.atoms.mean(network(features, center, depth)).argmax(-1)
        return bins
