"""Contacts of the feet over time: how long and how high they swing."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.interface.state import RobotState
from robot_rl.util.rows import Rows

CONTACT_FORCE = 1.0
"""Smallest force that counts as contact, N."""


class FootTracker(Rows):
    """Memory (n, F) of n robots' feet, updated once per control period."""

    ROWS = ("touching", "contact", "landed", "air_time", "swing_height")

    def __init__(self, num_envs: int, feet: int, radius: float, period: float, device: torch.device | str = "cpu"):
        self.radius, self.period = radius, period
        nothing = torch.zeros(num_envs, feet, device=device)
        self.touching, self.contact, self.landed = (nothing.bool() for _ in range(3))
        self.air_time, self.swing_height = nothing.clone(), nothing.clone()
        """Duration, s, and greatest sole height, m, of the current swing, or of one that has just ended; else 0."""

    def update(self, state: RobotState) -> None:
        """Update from true states. `contact`: on the ground now or one control period ago, since light contacts
        flicker; `landed`: since this period.
        """
        over = self.contact
        touching = state.foot_force > CONTACT_FORCE
        contact = touching | self.touching
        self.landed = contact & ~over
        self.touching, self.contact = touching, contact
        swings = ~(over & contact)
        self.air_time = (self.air_time + self.period) * swings
        self.swing_height = torch.maximum(self.swing_height, self.sole(state)) * swings

    def sole(self, state: RobotState) -> Tensor:
        """Return the height (n, F) of the lowest point of each foot, m."""
        return state.foot_position[:, 2::3] - self.radius

    def reset(self, ids: Tensor) -> None:
        """Reset robots `ids` to standing."""
        for name in ("landed", "air_time", "swing_height"):
            getattr(self, name)[ids] = 0
        self.contact[ids] = self.touching[ids] = True
