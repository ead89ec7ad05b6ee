"""Actions as bins, coarse to fine (Seo et al. 2024, 2407.07787, section 3): every dimension's range [-1, 1] is cut into
B bins, the chosen bin into B again, L times. An action is L bins per dimension, and stands for the last one's centre.

    level 0   |----0----|----1----|----2----|      B = 3: bin 1
    level 1             |0-|1-|2--|                       bin 2
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.base import Normalizer, Observation, Policy, Size
from policies.networks.encoder import Encoder, EncoderConfig
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class CoarseToFineCodec:
    """Turn actions in [-1, 1] into bins and back."""

    levels: int
    bins: int

    @property
    def width(self) -> float:
        """Return the width of the finest bin."""
        return 2 / self.bins**self.levels

    def encode(self, action: Tensor) -> Tensor:
        """Return the bins (B, L, A), long, of actions (B, A)."""
        most = self.bins**self.levels
        finest = ((action + 1) * (most / 2)).long().clamp(0, most - 1)
        places = [self.bins ** (self.levels - 1 - level) for level in range(self.levels)]
        return torch.stack([finest // place % self.bins for place in places], 1)

    def centers(self, bins: Tensor) -> Tensor:
        """Return the centres (B, L + 1, A) of the interval before each of the bins (B, L, A), and after the last."""
        width = 2 / self.bins ** torch.arange(1, self.levels + 1, device=bins.device)
        moves = (bins - (self.bins - 1) / 2) * width[:, None]
        return torch.cat([torch.zeros_like(moves[:, :1]), moves.cumsum(1)], 1)

    def decode(self, bins: Tensor) -> Tensor:
        """Return the actions (B, A) that bins (B, L, A) stand for."""
        return self.centers(bins)[:, -1]

    def snap(self, action: Tensor) -> Tensor:
        """Return the representable actions (B, A) nearest to actions (B, A)."""
        return self.decode(self.encode(action))


@dataclass(frozen=True)
class BinsConfig:
    """Bins of an action, and the network that values them."""

    levels: PositiveInt = 3
    """Times L that a dimension's range is refined."""
    bins: PositiveInt = 5
    """Bins B of a level; B ** L values per dimension in all."""
    hidden: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the hidden layers."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)


class BinsPolicy(Policy):
    """A policy whose actions are read off the values of bins."""

    config_class: ClassVar[Any] = BinsConfig
    horizon = execute = 1
    network: nn.Module
    """Values of bins; a learner's target network, so it acts as it bootstraps."""

    def __init__(self, size: Size, config: BinsConfig):
        super().__init__()
        self.size, self.config = size, config
        self.codec = CoarseToFineCodec(config.levels, config.bins)
        self.normalizer = Normalizer(size.observation, math.inf)  # without demonstrations it is the identity
        self.encoder = Encoder(size, config.encoder)

    def features(self, observation: Observation) -> Tensor:
        """Return the network's features (B, F)."""
        return self.encoder(self.normalizer(observation["observation.state"]), observation)

    def fit(self, columns: dict[str, Tensor]) -> None:
        self.normalizer.fit(columns["observation.state"])

    @abstractmethod
    def choose(self, features: Tensor, rng: torch.Generator, explore: bool = False) -> Tensor:
        """Return bins (B, L, A) for features (B, F); with `explore`, sampled where the policy is stochastic."""

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.codec.decode(self.choose(self.features(observation), rng))[:, None]
