"""When a robot must not move: time-outs and limits of the command loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from real.robots.base import JointReading
from robot_rl.interface.robot import RobotSpec

STALE_STATE, STALE_GOAL = "stale state", "stale goal"
"""Temporary reasons not to move; only an arm resumes by itself."""


@dataclass(frozen=True)
class SafetyConfig:
    """Time-outs and limits of the command loop."""

    state_timeout: float = 0.05
    """Oldest joint state to move on, s."""
    goal_timeout: float = 0.15
    """Oldest goal of an arm to move on, s: three control periods at 20 Hz."""
    patience: float = 0.3
    """The same for a walking robot, s: damping makes it fall, so it stands through short gaps."""
    start_mismatch: float = 0.2
    """Largest distance of the first goal after a start or a hold beyond the arm's reach in that time, rad; and of an
    arm from its held position."""
    moved_patience: float = 0.1
    """Time that an arm may be further from its held position before it is held at the measured one, s: one state may be
    wrong."""
    object_timeout: float = 0.2
    """Oldest object pose to post a goal from, s."""
    picture_timeout: float = 0.15
    """Oldest camera picture, s: three pictures at 20 Hz. Of a policy that sees the camera no goal is posted from an
    older one; of other cameras it is recorded again and stops nothing."""
    lost_timeout: float = 0.5
    """Age of the joint state, or of a picture that the policy sees, at which the episode ends with an error, s."""
    max_nonfinite: int = 3
    """Non-finite goals in a row that latch a stop."""
    tilt: float = 60.0
    """Tilt of a walking robot's trunk, degrees, above which a stop latches."""
    overspeed: float = 1.2
    """Share of a joint's speed limit; three states in a row above it latch a walking robot's stop."""
    guard_patience: float = 0.2
    """Time in which the guard must start to pass on commands for standing up, s; later, its damping latches a stop."""


class PostureLimits:
    """Limits of a walking robot's state."""

    def __init__(self, robot: RobotSpec, safety: SafetyConfig):
        self.upright = math.cos(math.radians(safety.tilt))
        self.speed = safety.overspeed * np.array([j.velocity for j in robot.joints])
        self._fast, self._seen = 0, -math.inf

    def broken(self, reading: JointReading) -> str:
        """Return the limit that the newest state breaks; empty if none."""
        if reading.upright < self.upright:
            return "tilt"
        if reading.received > self._seen:
            self._seen = reading.received
            self._fast = self._fast + 1 if (np.abs(reading.velocity) > self.speed).any() else 0
        return "joint speed" if self._fast >= 3 else ""
