"""What is asked of the robots in simulation, changing while an episode runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from robot_rl.spec import VectorSpec
from sim.randomization.noise import episode_keys, uniforms

PURPOSE = 1
"""Of the numbers that an episode draws its commands from."""


@dataclass(frozen=True)
class CommandSchedule:
    """Commands drawn uniformly within the ranges of the interface, each held for a while."""

    hold: float = 4.0
    """Time between two commands, s."""
    standing: float = 0.1
    """Share of commands that ask for nothing."""

    def __call__(self, spec: VectorSpec, keys: np.ndarray, steps: Tensor, rate: float) -> Tensor:
        """Commands (n, C) of episodes `keys` (n,) in their control periods `steps` (n,) at `rate` Hz."""
        u = uniforms(keys, (steps // round(self.hold * rate)).numpy(), spec.size + 1)
        command = spec.low + u[:, 1:] * (spec.high - spec.low)
        return torch.where(u[:, :1] < self.standing, 0.0, command)

    def of_episode(self, spec: VectorSpec, seed: int, step: int, rate: float) -> Tensor:
        """The command (1, C) of the first episode of `seed` in one control period: on a robot as in simulation."""
        return self(spec, episode_keys([seed], 0, PURPOSE), torch.tensor([step]), rate)
