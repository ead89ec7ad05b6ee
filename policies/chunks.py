"""Generative policies of action chunks on low-dimensional observations: a network, and a map from noise to a chunk."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Normalizer, Observation, Policy, Size, mlp, normal
from policies.encoder import Encoder, EncoderConfig
from robot_rl.util.limits import NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class ChunkConfig:
    """A policy that samples chunks of actions."""

    horizon: PositiveInt = 16
    """Actions predicted at once."""
    execute: PositiveInt = 8
    """Actions executed before the next prediction."""
    hidden: PositiveInt = 256
    """Width of the network."""
    layers: NonNegativeInt = 3
    """Hidden layers of the network."""
    sample_steps: PositiveInt = 10
    """Evaluations of the network per chunk."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)

    def __post_init__(self) -> None:
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")


class ChunkPolicy(Policy):
    """An MLP on a noisy chunk, the observation and a time, applied `sample_steps` times."""

    EMBED = 32
    """Size of the time's embedding."""
    LONGEST_PERIOD = 1e4

    def __init__(self, size: Size, config: Any):
        super().__init__()
        self.size, self.config = size, config
        self.horizon, self.execute = config.horizon, config.execute
        self.normalizer = Normalizer(size.observation)
        flat = config.horizon * size.action
        self.encoder = Encoder(size, config.encoder)
        self.denoiser = mlp([flat + self.encoder.size + self.EMBED] + [config.hidden] * config.layers + [flat], nn.Mish)

    def _predict(self, chunk: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Evaluate the network on chunks (B, horizon, A) at times (B,)."""
        half = self.EMBED // 2
        frequency = torch.exp(-math.log(self.LONGEST_PERIOD) / half * torch.arange(half, device=chunk.device))
        phase = time[:, None].float() * frequency
        x = torch.cat([chunk.flatten(1), condition, phase.sin(), phase.cos()], -1)
        return self.denoiser(x).view_as(chunk)

    def condition(self, observation: Observation) -> Tensor:
        """Return what the network reads of an observation (B, F)."""
        return self.encoder(self.normalizer(observation["observation.state"]), observation)

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Take the normalizer's statistics from demonstrated rows (N, ...)."""
        self.normalizer.fit(columns["observation.state"])

    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw initial noise (count, horizon, A)."""
        return normal((count, self.horizon, self.size.action), rng, self.normalizer.mean.device)

    @abstractmethod
    def base(self, observation: Observation, noise: Tensor) -> Tensor:
        """Map noise to chunks (B, horizon, A) in [-1, 1], deterministically."""

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.base(observation, self.noise(len(observation["observation.state"]), rng))
