"""Reach: a planar arm with two links moves its tip to a random target, within 2 cm."""

import math

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from sim.testbeds.base import Testbed

LINKS = (0.3, 0.25)
"""Lengths of the links, m."""
STEP = 0.12
"""Maximum motion of a joint per step, rad."""
NEAR = 0.02
"""Distance between tip and target within which the task succeeds, m."""


def tip(q: Tensor) -> Tensor:
    """Return the tip's position (n, 2), m, at joint angles q (n, 2), rad."""
    first, both = q[:, 0], q.sum(1)
    x = LINKS[0] * first.cos() + LINKS[1] * both.cos()
    y = LINKS[0] * first.sin() + LINKS[1] * both.sin()
    return torch.stack([x, y], 1)


class Reach(Testbed):
    """State: joint angles (2), rad; target (2), m."""

    name, horizon, observation, action, draws = "reach", 50, 10, 2, 4
    goal = (
        "A planar arm of two links brings its tip to the target; done within 0.02 m. An action of 1 turns a joint by "
        "0.12 rad."
    )
    fields = (
        box("joint_cos", "shoulder elbow", "1", -1, 1), box("joint_sin", "shoulder elbow", "1", -1, 1),
        box("tip_position", "x y", "m", -0.55, 0.55), box("target_position", "x y", "m", -0.5, 0.5),
        box("target_to_tip", "x y", "m", -1.05, 1.05),
    )  # fmt: skip

    def start(self, u: Tensor) -> Tensor:
        q = torch.stack([math.pi * (2 * u[:, 0] - 1), math.pi * (0.2 + 0.6 * u[:, 1])], 1)
        radius, angle = 0.15 + 0.35 * u[:, 2:3].sqrt(), 2 * math.pi * u[:, 3:4]
        return torch.cat([q, radius * angle.cos(), radius * angle.sin()], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([s[:, :2] + STEP * a, s[:, 2:]], 1)

    def observe(self, s: Tensor) -> Tensor:
        q, target = s[:, :2], s[:, 2:]
        return torch.cat([q.cos(), q.sin(), tip(q), target, target - tip(q)], 1)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = (tip(s[:, :2]) - s[:, 2:]).norm(dim=1) < NEAR
        return success.float(), success, torch.zeros_like(success)

    def progress(self, s: Tensor) -> Tensor:
        return -(tip(s[:, :2]) - s[:, 2:]).norm(dim=1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        cos, sin = observation[:, :2], observation[:, 2:4]
        both = torch.stack(
            [cos[:, 0] * cos[:, 1] - sin[:, 0] * sin[:, 1], sin[:, 0] * cos[:, 1] + cos[:, 0] * sin[:, 1]], 1
        )
        first = torch.stack([-sin[:, 0], cos[:, 0]], 1) * LINKS[0]
        second = torch.stack([-both[:, 1], both[:, 0]], 1) * LINKS[1]
        jacobian = torch.stack([first + second, second], 2)
        damped = jacobian @ jacobian.mT + 1e-3 * torch.eye(2)
        error = observation[:, 8:10, None]
        return ((jacobian.mT @ torch.linalg.solve(damped, error))[..., 0] / STEP).clamp(-1, 1)
