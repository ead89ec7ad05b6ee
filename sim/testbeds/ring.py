"""Ring: a point goes round a post to a goal, either way; the mean of the two ways is to stand still."""

import math

import torch
from torch import Tensor

from robot_rl.interface.spec import box
from sim.testbeds.base import Testbed

STEP = 0.1
"""Maximum motion per step and axis, m."""
RADIUS, POST, WALL = 0.5, 0.4, 0.6
"""Distance from the origin of starts and goals, of the post's face, and of the wall around the ring, m."""
NEAR = 0.1
"""Distance from the goal within which the point has reached it, m."""


class Ring(Testbed):
    """State: position (2), goal (2), m; whether the goal has been reached. Each step before that costs 1. An episode
    goes on after the goal, so that demonstrations are play: they go round and round, whatever the goal."""

    name, horizon, observation, action, draws, reports_success = "ring", 200, 4, 2, 2, False
    goal = (
        "A point between a round post and a round wall goes to the target, either way round the post; done within "
        "0.1 m. An action of 1 moves it by 0.1 m."
    )
    fields = (box("position", "x y", "m", -1, 1), box("target_position", "x y", "m", -1, 1))

    def start(self, u: Tensor) -> Tensor:
        at = 2 * math.pi * u
        placed = RADIUS * torch.stack([at[:, 0].cos(), at[:, 0].sin(), at[:, 1].cos(), at[:, 1].sin()], 1)
        return torch.cat([placed, torch.zeros_like(u[:, :1])], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        """Move the point; post and wall stop its motion towards them."""
        p = s[:, :2] + STEP * a
        r = p.norm(dim=1, keepdim=True).clamp_min(1e-6)
        p = p / r * r.clamp(POST, WALL)
        near = (p - s[:, 2:4]).norm(dim=1, keepdim=True) < NEAR
        return torch.cat([p, s[:, 2:4], torch.maximum(s[:, 4:], near.float())], 1)

    def observe(self, s: Tensor) -> Tensor:
        return s[:, :4]

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        never = torch.zeros(len(s), dtype=torch.bool, device=s.device)
        return s[:, 4] - 1, never, never

    def progress(self, s: Tensor) -> Tensor:
        return -(s[:, :2] - s[:, 2:4]).norm(dim=1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Go round and round one way, which is sampled per episode."""
        p = observation[:, :2]
        r = p.norm(dim=1, keepdim=True)
        along = torch.stack([-p[:, 1], p[:, 0]], 1) / r * torch.where(u[:, :1] < 0.5, -1.0, 1.0)
        return (0.9 * along + (RADIUS / r - 1) * p / STEP).clamp(-1, 1)
