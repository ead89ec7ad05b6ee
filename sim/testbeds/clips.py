"""Clips: a point in six dimensions follows one of two lines, which pass a ball that the point must not touch."""

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from sim.testbeds.base import Testbed

STEP = 0.05
"""Maximum motion per step and dimension, m."""
SIDE, END = 0.7, 0.8
"""Distance of the lines from the middle, and end of the lines in y; they begin at -END, m."""
RADIUS = 0.5
"""Radius of the ball at the origin, m."""
NEAR = 0.25
"""Distance from the end of the line within which the point must be, m."""
STAY = 5
"""Number of steps in which it must be there: demonstrations then end at the end of the line, not on the way to it."""
SPREAD = 0.05
"""Largest distance of a start from the line, per dimension, m."""


class Clips(Testbed):
    """State: position (6), m; the line to follow (1), -1 on the left or 1 on the right; the number of steps at its end,
    which is not observed. The point starts where the line begins. An episode fails when it touches the ball."""

    name, horizon, observation, action, draws = "clips", 120, 7, 6, 7
    goal = (
        "A point in six dimensions goes to the end of one of two lines, at -0.7 or 0.7 m in the first dimension and "
        "0.8 m in the second, without touching a ball of 0.5 m at the origin; done after five steps within 0.25 m. "
        "An action of 1 moves it by 0.05 m."
    )
    fields = (box("position", "a b c d e f", "m", -1, 1), box("skill", "side", "1", -1, 1))

    def start(self, u: Tensor) -> Tensor:
        side = torch.where(u[:, :1] < 0.5, -1.0, 1.0)
        return self._start(side, torch.full_like(side, -END), side, u)

    def _start(self, side: Tensor, along: Tensor, told: Tensor, u: Tensor) -> Tensor:
        """Return states (n, 8) near the line on `side` (n, 1), at y `along` (n, 1), told to follow line `told`."""
        line = torch.cat([SIDE * side, along, torch.zeros(len(u), 4, device=u.device)], 1)
        return torch.cat([line + SPREAD * (2 * u[:, 1:] - 1), told, torch.zeros_like(told)], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        p = (s[:, :6] + STEP * a).clamp(-1, 1)
        near = (p - self._end(s)).norm(dim=1, keepdim=True) < NEAR
        return torch.cat([p, s[:, 6:7], s[:, 7:] + near], 1)

    def observe(self, s: Tensor) -> Tensor:
        return s[:, :7]

    def restore(self, observation: Tensor) -> Tensor:
        return torch.cat([observation, torch.zeros_like(observation[:, :1])], 1)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success, failure = s[:, 7] >= STAY, s[:, :6].norm(dim=1) < RADIUS
        return success.float(), success, failure

    def progress(self, s: Tensor) -> Tensor:
        return -(s[:, :6] - self._end(s)).norm(dim=1)

    def _end(self, s: Tensor) -> Tensor:
        """Return the end (n, 6) of the line to follow."""
        return torch.cat([SIDE * s[:, 6:7], torch.full_like(s[:, 6:7], END), torch.zeros_like(s[:, :4])], 1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Follow the line to its end; from the other side, first go up until the ball is passed."""
        p, end = observation[:, :6], self._end(observation)
        blocked = (p[:, 0] * observation[:, 6] < 0.5) & (p[:, 1] < END - 0.1)
        up = torch.cat([torch.full_like(p[:, :1], SIDE) * p[:, :1].sign(), end[:, 1:]], 1)
        return ((torch.where(blocked[:, None], up, end) - p) / STEP).clamp(-1, 1)


class ClipsSwitch(Clips):
    """Clips that start midway along the other line, behind the ball: its ends are not the way to the line."""

    name = "clips-switch"

    def start(self, u: Tensor) -> Tensor:
        side = torch.where(u[:, :1] < 0.5, -1.0, 1.0)
        along = -0.4 * (2 * (u[:, :1] % 0.5))
        return self._start(side, along, -side, u)
