"""Swing: a pendulum with a weak motor swings up; dynamics and dense reward as in Gymnasium's Pendulum-v1."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from sim.randomization import Randomize
from sim.testbeds.base import Testbed

TORQUE, FASTEST, DT = 2.0, 8.0, 0.05
"""Maximum torque, N m, maximum speed, rad/s, and time step, s."""
OUTSIDE = 1.0
"""Maximum torque from outside, N m."""


class Swing(Testbed):
    """State: angle from upright, rad; speed, rad/s."""

    name, horizon, observation, action, draws = "swing", 200, 3, 1, 2
    reports_success, disturbance = False, 1

    def start(self, u: Tensor) -> Tensor:
        return torch.stack([math.pi * (2 * u[:, 0] - 1), 2 * u[:, 1] - 1], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        angle, speed = s.unbind(1)
        speed = (speed + (15 * angle.sin() + 3 * TORQUE * a[:, 0]) * DT).clamp(-FASTEST, FASTEST)
        return torch.stack([torch.remainder(angle + speed * DT + math.pi, 2 * math.pi) - math.pi, speed], 1)

    def disturb(self, s: Tensor, force: Tensor) -> Tensor:
        return torch.cat([s[:, :1], s[:, 1:2] + 3 * OUTSIDE * DT * force, s[:, 2:]], 1)

    def observe(self, s: Tensor) -> Tensor:
        return torch.stack([s[:, 0].cos(), s[:, 0].sin(), s[:, 1]], 1)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cost = s[:, 0] ** 2 + 0.1 * s[:, 1] ** 2 + 0.001 * (TORQUE * a[:, 0]) ** 2
        never = torch.zeros_like(cost, dtype=torch.bool)
        return -cost, never, never

    def progress(self, s: Tensor) -> Tensor:
        return s[:, 0].cos()

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Swing up by energy control, then stabilize (Astrom & Furuta 2000)."""
        cos, sin, speed = observation.unbind(1)
        energy = speed**2 / 2 + 15 * (cos - 1)
        pump = -torch.sign(energy * torch.where(speed == 0, 1.0, speed))
        catch = -(15 * sin + 6 * speed) / (3 * TORQUE)
        return torch.where((cos > 0.9) & (speed.abs() < 4), catch, pump)[:, None].clamp(-1, 1)


class SwingVaried(Swing):
    """Swing with a pendulum of another mass and other friction in each episode, which the policy does not observe.

    Masses above 1 reach upright only after more swings; with the largest friction as well, never.
    """

    name = "swing-varied"
    randomization = (
        Randomize("pendulum.mass", 0.4, 6.0),  # kg
        Randomize("pendulum.damping", 0.0, 1.0),  # 1/s
    )
    nominal: ClassVar[dict[str, float]] = {"pendulum.mass": 1.0, "pendulum.damping": 0.0}

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        angle, speed, mass, damping = s.unbind(1)
        force = 15 * angle.sin() + 3 * TORQUE / mass * a[:, 0] - damping * speed
        speed = (speed + force * DT).clamp(-FASTEST, FASTEST)
        angle = torch.remainder(angle + speed * DT + math.pi, 2 * math.pi) - math.pi
        return torch.stack([angle, speed, mass, damping], 1)
