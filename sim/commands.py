"""Velocity commands that change during an episode of a simulation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.interface.pipeline import COMMAND_RAMP
from robot_rl.interface.spec import VectorSpec
from sim.randomization.noise import episode_keys, uniforms

PURPOSE = 1
"""Purpose for `episode_keys`, which gives an episode's commands random numbers of their own."""


@dataclass(frozen=True)
class CommandSchedule:
    """Commands sampled uniformly from the ranges of the interface and held for a fixed time. An episode begins with a
    zero command. From one command to the next, the values change linearly within `COMMAND_RAMP` s."""

    hold: float = 4.0
    """Time between two changes of the command, s."""
    standing: float = 0.1
    """Share of zero commands, 0 to 1."""

    def __call__(self, spec: VectorSpec, keys: Tensor, steps: Tensor, rate: float) -> Tensor:
        """Return commands (n, C) of episodes `keys` (n,) at control periods `steps` (n,); control rate `rate` in Hz."""
        hold = round(self.hold * rate)
        number, since = steps // hold, steps % hold
        # The current and the previous command, in one call.
        u = uniforms(torch.cat([keys, keys]), torch.cat([number, number - 1]), spec.size + 1)
        low, high = spec.bounds(keys.device)
        command = torch.where(u[:, :1] < self.standing, 0.0, low + u[:, 1:] * (high - low))
        now, before = command.chunk(2)
        before = torch.where(steps[:, None] < hold, 0.0, before)
        return torch.lerp(before, now, (since / (COMMAND_RAMP * rate)).clamp(max=1.0)[:, None])

    def of_episode(self, spec: VectorSpec, seed: int, step: int, rate: float) -> Tensor:
        """Return the command (1, C) at control period `step` of the first episode of `seed`, for a real robot."""
        return self(spec, episode_keys([seed], 0, PURPOSE), torch.tensor([step]), rate)
