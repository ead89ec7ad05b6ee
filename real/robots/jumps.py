"""Refuse joint states that the robot cannot have reached: another robot's, a foreign writer's, a broken encoder's."""

from __future__ import annotations

from collections import deque

import numpy as np

from robot_rl.interface.robot import RobotSpec

SLACK = 0.1
"""Allowed beyond the motion at full speed, rad: noise of the encoders."""
LATENESS = 0.02
"""Largest lateness of one state against the next, s."""
OVERSPEED = 1.2
"""Share of a joint's speed limit that a state may show."""
MANY, WITHIN = 3, 1.0
"""Refused states within so many seconds that are no accident."""


class JumpCheck:
    """Compare each joint state with the last accepted one."""

    def __init__(self, robot: RobotSpec):
        self.speed = OVERSPEED * np.array([joint.velocity for joint in robot.joints])
        """(J,) rad/s"""
        self.count = 0
        """Number of refused states."""
        self._times: deque[float] = deque(maxlen=MANY)

    def refuses(self, moved: np.ndarray, since: np.ndarray | float, now: float, joints: np.ndarray | slice) -> bool:
        """Return whether joints cannot have moved by `moved`, rad, `since` that many seconds. The reach grows with the
        time since the last accepted state, so a robot that was really moved is believed again."""
        if not (np.abs(moved) > SLACK + self.speed[joints] * (since + LATENESS)).any():
            return False
        self.count += 1
        self._times.append(now)
        return True

    def many(self, now: float) -> bool:
        """Return whether several states were refused lately."""
        return len(self._times) == MANY and now - self._times[0] <= WITHIN

    def forget(self) -> None:
        """Forget refused states, after the robot was put somewhere else."""
        self._times.clear()
