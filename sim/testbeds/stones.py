"""Stones: cross a river by jumps, each to one of two stones: left and near, or right and far. Between them is water."""

import torch
from torch import Tensor

from sim.testbeds.base import Testbed

AT, EDGE = 0.8, 0.2
"""Centre and near edge of the right, far stone in both components of the action; negated for the left, near stone."""
SHIFT = 0.1
"""Largest random shift of an episode's stones, in units of the action."""
JUMPS = 2


class Stones(Testbed):
    """State: number of jumps (1), shift of the stones (2)."""

    name, horizon, observation, action, draws = "stones", 4, 3, 2, 2

    def start(self, u: Tensor) -> Tensor:
        return torch.cat([torch.zeros(len(u), 1, device=u.device), SHIFT * (2 * u - 1)], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([s[:, :1] + 1, s[:, 1:]], 1)

    def observe(self, s: Tensor) -> Tensor:
        return torch.cat([s[:, :1] / JUMPS, s[:, 1:] / SHIFT], 1)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        jump = a - s[:, 1:]
        dry = (jump > EDGE).all(1) | (jump < -EDGE).all(1)
        success = dry & (s[:, 0] >= JUMPS)
        return success.float(), success, ~dry

    def progress(self, s: Tensor) -> Tensor:
        return s[:, 0]

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Jump to one of the two stones; the stone is sampled per jump."""
        jump = (observation[:, 0] * JUMPS).round().long().clamp(0, JUMPS)
        side = torch.where(u.gather(1, jump[:, None]) < 0.5, -1.0, 1.0)
        return side * AT + SHIFT * observation[:, 1:]
