"""Fork: a point passes an obstacle on the left or right; the mean of the demonstrations hits the obstacle."""

from typing import ClassVar

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from sim.testbeds.base import Testbed

STEP = 0.08
"""Maximum motion per step and axis, m."""
END = 0.9
"""Value of y beyond which the point succeeds, m."""


class Fork(Testbed):
    """State: x, y of the point, m. An episode fails when the point touches the obstacle."""

    name, horizon, observation, action, draws = "fork", 60, 2, 2, 2
    radius: ClassVar[float] = 0.35
    """Radius of the obstacle at the origin, m."""

    def start(self, u: Tensor) -> Tensor:
        return torch.stack([0.1 * (2 * u[:, 0] - 1), -0.9 + 0.1 * (2 * u[:, 1] - 1)], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        return (s + STEP * a).clamp(-1.2, 1.2)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success, failure = s[:, 1] > END, s.norm(dim=1) < self.radius
        return success.float(), success, failure

    def progress(self, s: Tensor) -> Tensor:
        return s[:, 1]

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Steer to one side until the obstacle is passed; the side is sampled per episode."""
        x, y = observation.unbind(1)
        side = torch.where(u[:, 0] < 0.5, -1.0, 1.0)
        aim = side * 0.65 * (1 - (y / 0.9) ** 2).clamp_min(0.0).sqrt() * 1.0
        across = (aim - x) / STEP
        forward = torch.where(across.abs() > 1, 0.35, 0.8)
        return torch.stack([across, forward], 1).clamp(-1, 1)


class ForkRight(Fork):
    """Fork in which a point that passes the obstacle on the left fails."""

    name = "fork-right"

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        passed, hit = s[:, 1] > END, s.norm(dim=1) < self.radius
        right = s[:, 0] > 0
        success = passed & right
        return success.float(), success, hit | (passed & ~right)


class ForkFast(Fork):
    """State: x, y of the point, m. The point moves forward by itself, so the policy must choose a side at the start.
    The mean of the actions for both sides hits the obstacle."""

    name, horizon, action, radius = "fork-fast", 30, 1, 0.57

    def start(self, u: Tensor) -> Tensor:
        return torch.stack([0.02 * (2 * u[:, 0] - 1), -0.9 + 0.02 * (2 * u[:, 1] - 1)], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        return torch.stack([(s[:, 0] + STEP * a[:, 0]).clamp(-1.2, 1.2), s[:, 1] + STEP], 1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Steer to one side from the start; the side is sampled per episode."""
        side = torch.where(u[:, :1] < 0.5, -0.65, 0.65)
        return ((side - observation[:, :1]) / STEP).clamp(-1, 1)


class ForkFastRight(ForkRight, ForkFast):
    """ForkFast in which the left side fails: the first action determines the whole return."""

    name = "fork-fast-right"


class ForkGoal(ForkFast):
    """State: position (2), goal (2), m; the last sideways motion, as a share of its maximum, which is not observed. The
    point moves forward by itself to a goal behind the obstacle, past either side. It is slow to turn, so at first its
    position does not tell the side. An episode fails when the point touches the obstacle or passes the goal."""

    name, horizon, observation, draws, radius = "fork-goal", 40, 4, 4, 0.4
    goal = (
        "A point that moves forward by itself passes an obstacle, on either side, and goes through the target; done "
        "within 0.15 m. An action of 1 moves it sideways by up to 0.08 m, after a few steps."
    )
    fields = (box("position", "x y", "m", -1.2, 2.0), box("target_position", "x y", "m", -1.2, 2.0))
    near: ClassVar[float] = 0.15
    """Distance from the goal within which the point succeeds, m."""
    inertia: ClassVar[float] = 0.7
    """Share of the last sideways motion that remains."""

    def start(self, u: Tensor) -> Tensor:
        target = torch.stack([0.3 * (2 * u[:, 2] - 1), 1.3 + 0.1 * (2 * u[:, 3] - 1)], 1)
        return torch.cat([super().start(u), target, torch.zeros_like(target[:, :1])], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        motion = self.inertia * s[:, 4:] + (1 - self.inertia) * a
        return torch.cat([super().advance(s, motion), s[:, 2:4], motion], 1)

    def observe(self, s: Tensor) -> Tensor:
        return s[:, :4]

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = (s[:, :2] - s[:, 2:4]).norm(dim=1) < self.near
        hit, passed = s[:, :2].norm(dim=1) < self.radius, s[:, 1] > s[:, 3] + self.near
        return success.float(), success, (hit | passed) & ~success

    def progress(self, s: Tensor) -> Tensor:
        return -(s[:, :2] - s[:, 2:4]).norm(dim=1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Steer to one side from the start, then to the goal; the side is sampled per episode."""
        x, y = observation[:, :1], observation[:, 1:2]
        side = torch.where(u[:, :1] < 0.5, -0.5, 0.5)
        return (3 * (torch.where(y > 0.1, observation[:, 2:3], side) - x)).clamp(-1, 1)
