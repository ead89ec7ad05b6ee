"""Velocity commands in simulation, changing during an episode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.interface.pipeline import COMMAND_RAMP
from robot_rl.interface.spec import VectorSpec
from sim.randomization.noise import episode_keys, uniforms

PURPOSE = 1
"""Purpose of the random numbers of an episode's commands."""


@dataclass(frozen=True)
class CommandSchedule:
    """Commands sampled uniformly from the ranges of the interface, each held for a while.

    An episode begins with a zero command; commands change linearly, within `COMMAND_RAMP`.
    """

    hold: float = 4.0
    """Time between two commands, s."""
    standing: float = 0.1
    """Share of zero commands."""

    def __call__(self, spec: VectorSpec, keys: Tensor, steps: Tensor, rate: float) -> Tensor:
        """Return commands (n, C) of episodes `keys` (n,) in their control periods `steps` (n,) at `rate` Hz."""
        hold = round(self.hold * rate)
        number, since = steps // hold, steps % hold
        # The current command and the one before, in one call.
        u = uniforms(torch.cat([keys, keys]), torch.cat([number, number - 1]), spec.size + 1)
        low, high = spec.bounds(keys.device)
        command = torch.where(u[:, :1] < self.standing, 0.0, low + u[:, 1:] * (high - low))
        now, before = command.chunk(2)
        before = torch.where(steps[:, None] < hold, 0.0, before)
        return torch.lerp(before, now, (since / (COMMAND_RAMP * rate)).clamp(max=1.0)[:, None])

    def of_episode(self, spec: VectorSpec, seed: int, step: int, rate: float) -> Tensor:
        """Return the command (1, C) in one control period of the first episode of `seed`, for a robot."""
        return self(spec, episode_keys([seed], 0, PURPOSE), torch.tensor([step]), rate)
