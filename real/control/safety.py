"""Time-outs and limits of the command loop."""

import math
from dataclasses import dataclass

import numpy as np

from real.robots.base import JointReading
from robot_rl.interface.robot import RobotSpec

STALE_STATE, STALE_GOAL = "stale state", "stale goal"
"""Temporary reasons to hold; an arm resumes by itself, a legged robot does not."""


@dataclass(frozen=True)
class SafetyConfig:
    """Time-outs and limits of the command loop."""

    state_timeout: float = 0.05
    """Maximum age of a joint state with which the robot is moved, s."""
    goal_timeout: float = 0.15
    """Maximum age of an arm's goal, s: three control periods at 20 Hz."""
    patience: float = 0.3
    """Maximum age of a legged robot's goal, s. Damping makes the robot fall, so it keeps standing in short gaps."""
    start_mismatch: float = 0.2
    """Maximum distance of the first goal after a start or hold from what the joint can reach in the goal's duration,
    and of a held arm from its command, rad."""
    moved_patience: float = 0.1
    """Time for which a held arm must be further than `start_mismatch` from its command before it is held where it is,
    s. A single joint state may be wrong."""
    object_timeout: float = 0.2
    """Maximum age of an object pose for posting a goal, s."""
    picture_timeout: float = 0.15
    """Maximum age of a picture, s: three frames at 20 Hz. An older picture of the policy's cameras stops goals; for
    other cameras the last picture is recorded again."""
    lost_timeout: float = 0.5
    """Age of the joint state, or of one of the policy's pictures, at which the episode ends with an error, s."""
    max_nonfinite: int = 3
    """Number of consecutive non-finite goals that latches a stop."""
    tilt: float = 60.0
    """Tilt of a legged robot's trunk above which a stop latches, degrees."""
    overspeed: float = 1.2
    """Multiple of a joint's speed limit. Three consecutive states with a faster joint latch a legged robot's stop."""
    guard_patience: float = 0.2
    """Time within which the guard must pass on commands for standing up, s. Later, damping by the guard latches a
    stop."""


class PostureLimits:
    """Tilt and speed limits of a legged robot."""

    def __init__(self, robot: RobotSpec, safety: SafetyConfig):
        self.upright = math.cos(math.radians(safety.tilt))
        self.speed = safety.overspeed * np.array([j.velocity for j in robot.joints])
        self._fast, self._seen = 0, -math.inf

    def broken(self, reading: JointReading) -> str:
        """Return the name of the limit that the newest state violates; empty if it violates none."""
        if reading.upright < self.upright:
            return "tilt"
        if reading.received > self._seen:
            self._seen = reading.received
            self._fast = self._fast + 1 if (np.abs(reading.velocity) > self.speed).any() else 0
        return "joint speed" if self._fast >= 3 else ""
