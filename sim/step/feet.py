"""Foot contacts over time: duration and height of swings."""

import torch
from torch import Tensor

from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.util.rows import Rows

CONTACT_FORCE = 1.0
"""A foot touches the ground if its contact force exceeds this threshold, N."""


class FootTracker(Rows):
    """Contact history (n, F) of the feet of n robots, updated once per control period."""

    ROWS = ("touching", "contact", "landed", "air_time", "swing_height")

    def __init__(self, num_envs: int, feet: int, radius: float, period: float, device: torch.device | str = "cpu"):
        self.radius, self.period = radius, period
        zeros = torch.zeros(num_envs, feet, device=device)
        self.touching, self.contact, self.landed = (zeros.bool() for _ in range(3))
        self.air_time, self.swing_height = zeros.clone(), zeros.clone()
        """Duration, s, and largest sole height, m, of a foot's current or just ended swing; 0 for a foot in stance."""

    def update(self, state: RobotState) -> None:
        """Update from true states. `touching`: the foot is on the ground now. `contact`: the foot is on the ground now
        or was one control period ago, because light contacts flicker. `landed`: `contact` began in this period."""
        before, touching = self.contact, state.foot_force > CONTACT_FORCE
        contact = touching | self.touching
        self.touching, self.contact, self.landed = touching, contact, contact & ~before
        swings = ~(before & contact)
        self.air_time = (self.air_time + self.period) * swings
        self.swing_height = torch.maximum(self.swing_height, self.sole(state)) * swings

    def sole(self, state: RobotState) -> Tensor:
        """Return the height (n, F) of the lowest point of every foot above the ground below it, m."""
        height = state.foot_position[:, 2::3] - self.radius
        return height if state.foot_ground_height is ABSENT else height - state.foot_ground_height

    def reset(self, ids: Tensor) -> None:
        """Reset the contact history of robots `ids` to standing on all feet."""
        for name in ("landed", "air_time", "swing_height"):
            getattr(self, name)[ids] = 0
        self.contact[ids] = self.touching[ids] = True
