"""Insert: a peg that can tilt is inserted into a slot with 2 mm of clearance; success at a depth of 4 cm."""

import torch
from torch import Tensor

from sim.testbeds.base import Testbed

STEP, TURN = 0.01, 0.05
"""Maximum motion of the peg per step: m per axis, and rad."""
ROOM, TILT = 0.002, 0.04
"""Largest distance from the slot's centre, m, and largest tilt, rad, with which the peg enters the slot."""
DEEP = 0.04
"""Depth of the peg's tip beyond which the insertion succeeds, m."""
RUB = 0.5
"""Factor on sideways motion while the peg presses on the table."""


class Insert(Testbed):
    """State: x of the peg and height y of its tip above the table, m; tilt, rad; x of the slot, m."""

    name, horizon, observation, action, draws = "insert", 80, 5, 3, 4

    def start(self, u: Tensor) -> Tensor:
        u = 2 * u - 1
        return torch.stack([0.1 * u[:, 0], 0.08 + 0.04 * u[:, 1], 0.5 * u[:, 2], 0.1 * u[:, 3]], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        x, y, tilt, slot = s.unbind(1)
        inside = y < 0
        fits = ((x - slot).abs() <= ROOM) & (tilt.abs() <= TILT)
        low = y + STEP * a[:, 1]
        pressing = (low <= 0) & ~inside & ~fits
        moved = x + STEP * a[:, 0] * torch.where(pressing, RUB, 1.0)
        turned = (tilt + TURN * a[:, 2]).clamp(-0.6, 0.6)
        # Inside, the slot limits position and tilt.
        moved = torch.where(inside, torch.maximum(torch.minimum(moved, slot + ROOM), slot - ROOM), moved)
        turned = torch.where(inside, turned.clamp(-TILT, TILT), turned)
        low = torch.where(pressing, 0.0, low).clamp(-0.05, 0.15)
        return torch.stack([moved.clamp(-0.2, 0.2), low, turned, slot], 1)

    def observe(self, s: Tensor) -> Tensor:
        x, y, tilt, slot = s.unbind(1)
        return torch.stack([10 * x, 10 * y, 2 * tilt, 10 * slot, 50 * (x - slot)], 1)

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        success = s[:, 1] < -DEEP
        return success.float(), success, torch.zeros_like(success)

    def progress(self, s: Tensor) -> Tensor:
        x, y, tilt, slot = s.unbind(1)
        return -(x - slot).abs() - 0.2 * tilt.abs() - y

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Move above the slot, straighten, then press down. The aim is off by up to 4 mm, constant over an episode."""
        y, tilt, off = observation[:, 1] / 10, observation[:, 2] / 2, observation[:, 4] / 50
        aim = off + 0.008 * (u[:, 0] - 0.5)
        inside = y < 0
        ready = inside | ((aim.abs() < 2 * ROOM) & (tilt.abs() < 0.5 * TILT))
        across = torch.where(inside, -off, -aim) / STEP
        down = torch.where(ready, -1.0, (0.01 - y) / STEP)
        return torch.stack([across, down, -tilt / TURN], 1).clamp(-1, 1)
