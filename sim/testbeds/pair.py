"""Pair: two points go to their goals; the reward scales of their distances differ by a factor of 100."""

import torch
from torch import Tensor

from sim.testbeds.base import Testbed

STEP, NEAR = 0.06, 0.08
"""Maximum motion per step and axis, and distance from both goals at which the task succeeds, m."""
SCALES = (1.0, 0.01)
"""Cost per step and per m of distance to the goal, for the first and the second point."""


class Pair(Testbed):
    """State: first point (2), second point (2), their goals (2 x 2), m."""

    name, horizon, observation, action, draws = "pair", 50, 8, 4, 8
    rewards = ("first", "second")

    def start(self, u: Tensor) -> Tensor:
        return 2 * u - 1

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([(s[:, :4] + STEP * a).clamp(-1, 1), s[:, 4:]], 1)

    def observe(self, s: Tensor) -> Tensor:
        return torch.cat([s[:, :4], s[:, 4:] - s[:, :4]], 1)

    def _distances(self, s: Tensor) -> Tensor:
        return (s[:, 4:] - s[:, :4]).unflatten(1, (2, 2)).norm(dim=2)

    def terms(self, s: Tensor, a: Tensor) -> Tensor:
        return -self._distances(s) * torch.tensor(SCALES, device=s.device)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = (self._distances(s) < NEAR).all(1)
        return self.terms(s, a).sum(1), success, torch.zeros_like(success)

    def progress(self, s: Tensor) -> Tensor:
        return -self._distances(s).sum(1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Move each point straight to its goal."""
        return (observation[:, 4:] / STEP).clamp(-1, 1)
