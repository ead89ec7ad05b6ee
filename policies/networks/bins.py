"""Discretize actions coarse to fine (Seo et al. 2024, 2407.07787, section 3).

Each action dimension's range [-1, 1] is divided into B bins, and the chosen bin of each level into B bins of the next,
on L levels. The L chosen bins of a dimension encode the centre of the last bin.

    level 0   |----0----|----1----|----2----|      B = 3: bin 1
    level 1             |0-|1-|2--|                       bin 2
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.base import EncodingPolicy, Normalizer, Observation, Size
from policies.networks.encoder import Encoder, EncoderConfig
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class CoarseToFineCodec:
    """Convert actions in [-1, 1] to bins and back."""

    levels: int
    bins: int

    @property
    def width(self) -> float:
        """Return the width of a bin of the last level."""
        return 2 / self.bins**self.levels

    def encode(self, action: Tensor) -> Tensor:
        """Return the bins (B, L, A), long, of actions (B, A)."""
        most = self.bins**self.levels
        finest = ((action + 1) * (most / 2)).long().clamp(0, most - 1)
        places = [self.bins ** (self.levels - 1 - level) for level in range(self.levels)]
        return torch.stack([finest // place % self.bins for place in places], 1)

    def centers(self, bins: Tensor) -> Tensor:
        """Return centres (B, L + 1, A) of the interval that each level divides and of the last bin, for bins (B, L,
        A)."""
        width = 2 / self.bins ** torch.arange(1, self.levels + 1, device=bins.device)
        moves = (bins - (self.bins - 1) / 2) * width[:, None]
        return torch.cat([torch.zeros_like(moves[:, :1]), moves.cumsum(1)], 1)

    def decode(self, bins: Tensor) -> Tensor:
        """Return the actions (B, A) of bins (B, L, A)."""
        return self.centers(bins)[:, -1]

    def snap(self, action: Tensor) -> Tensor:
        """Round actions (B, A) to the nearest bin centres (B, A)."""
        return self.decode(self.encode(action))


@dataclass(frozen=True)
class BinsConfig:
    """Action bins and their value network."""

    levels: PositiveInt = 3
    """Number L of refinement levels of each action dimension's range."""
    bins: PositiveInt = 5
    """Number B of bins per level; each action dimension has B ** L values."""
    hidden: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the hidden layers."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)


class BinsPolicy(EncodingPolicy):
    """Policy that chooses actions by the values of bins."""

    config_class: ClassVar[Any] = BinsConfig
    horizon = execute = 1
    network: nn.Module
    """Value network of bins; in training it is the learner's target network."""

    def __init__(self, size: Size, config: BinsConfig):
        super().__init__()
        self.size, self.config = size, config
        self.codec = CoarseToFineCodec(config.levels, config.bins)
        self.normalizer = Normalizer(size.observation, math.inf)  # the identity until it is fitted
        self.encoder = Encoder(size, config.encoder)

    @abstractmethod
    def choose(self, features: Tensor, rng: torch.Generator, explore: bool = False) -> Tensor:
        """Return the chosen bins (B, L, A) for features (B, F); `explore` samples them if the policy is stochastic."""

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.codec.decode(self.choose(self.features(observation), rng))[:, None]
