"""Island: a point goes past a round obstacle to a goal; ranges say where starts and goals are, and how large it is."""

from typing import ClassVar

import torch
from torch import Tensor

from robot_rl.interface.observation_spec import PRIVILEGED, ObservationField, ObservationSpec
from robot_rl.interface.spec import box
from sim.randomization import Randomize
from sim.testbeds.base import Testbed

STEP, NEAR = 0.1, 0.1
"""Maximum motion per step and axis, and distance from the goal within which the point succeeds, m."""
SHORE, ROUND = 0.62, 0.13
"""Least distance of starts and goals from the origin, and the demonstrator's from an obstacle that it goes round, m."""


def ashore(p: Tensor) -> Tensor:
    """Return positions (n, 2) of which those nearer to the origin than `SHORE` are moved away from it."""
    r = p.norm(dim=1, keepdim=True).clamp_min(1e-6)
    return p / r * r.clamp_min(SHORE)


class Island(Testbed):
    """State: position (2), goal (2), radius of the obstacle at the origin, m. The point starts on the left. An episode
    fails when it touches the obstacle."""

    name, horizon, observation, action, draws = "island", 60, 4, 2, 2
    goal = (
        "A point in a square of 2 m goes to the target, past a round obstacle in the middle; done within 0.1 m. An "
        "action of 1 moves it by 0.1 m."
    )
    fields = (box("position", "x y", "m", -1, 1), box("target_position", "x y", "m", -1, 1))
    extra_inputs = ObservationSpec.of(**{PRIVILEGED: ObservationField((5,), kind="privileged")})
    randomization = (
        Randomize("goal.x", -1.0, 1.0),  # m
        Randomize("goal.y", -1.0, 1.0),  # m
        Randomize("radius", 0.45, 0.45),  # m
    )
    nominal: ClassVar[dict[str, float]] = {"goal.x": 0.7, "goal.y": 0.0, "radius": 0.45}

    def start(self, u: Tensor) -> Tensor:
        return ashore(torch.stack([-1 + 0.5 * u[:, 0], 2 * u[:, 1] - 1], 1))

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([(s[:, :2] + STEP * a).clamp(-1, 1), s[:, 2:]], 1)

    def observe(self, s: Tensor) -> Tensor:
        return torch.cat([s[:, :2], ashore(s[:, 2:4])], 1)

    def observe_others(self, s: Tensor) -> dict[str, Tensor]:
        return {PRIVILEGED: torch.cat([self.observe(s), s[:, 4:]], 1)}

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.observe(s)
        success = (seen[:, :2] - seen[:, 2:]).norm(dim=1) < NEAR
        return success.float(), success, (seen[:, :2].norm(dim=1) < s[:, 4]) & ~success

    def progress(self, s: Tensor) -> Tensor:
        seen = self.observe(s)
        return -(seen[:, :2] - seen[:, 2:]).norm(dim=1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Go straight to the goal, or close round the obstacle where it is in between, on the shorter side."""
        p, goal, past = observation[:, :2], observation[:, 2:4], observation[:, 4:] + ROUND
        way = goal - p
        share = (-(p * way).sum(1, keepdim=True) / way.square().sum(1, keepdim=True).clamp_min(1e-6)).clamp(0, 1)
        blocked = (p + share * way).norm(dim=1, keepdim=True) < past - 0.04
        r = p.norm(dim=1, keepdim=True).clamp_min(1e-6)
        left = torch.stack([-p[:, 1], p[:, 0]], 1) / r
        side = torch.where((left * goal).sum(1, keepdim=True) > 0, 1.0, -1.0)
        around = side * left + (past - r).clamp_min(0) * p / r / STEP
        return torch.where(blocked, around, way / STEP).clamp(-1, 1)
