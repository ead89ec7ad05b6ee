"""The guard lays a standing robot down by itself, without its policy: while the battery still holds, not when it is
empty."""

import numpy as np

from real.drivers.lowlevel import FIRMEST, Motors
from robot_rl.interface.robot import RobotSpec


class LyingDown:
    """Set-points of lying down: all feet down, fold the legs, soften, as at the end of an episode."""

    def __init__(self, motors: Motors, robot: RobotSpec):
        assert robot.base is not None
        self.motors = motors
        low, high = (np.array([getattr(joint, side) for joint in robot.joints]) for side in ("low", "high"))
        home, lying = (np.clip(pose, low, high) for pose in (robot.home, robot.base.lying or robot.home))
        self._stages = ((home, 0.5, FIRMEST), (lying, 2.0, FIRMEST), (lying, 0.5, 0.0))
        """Goal, rad, duration, s, and final stiffness of each stage."""
        self._begin, self._start, self._scale = -float("inf"), home, 0.0
        self.over = True
        """The robot has lain down, or was never asked to."""

    def begin(self, command: np.ndarray, now: float) -> None:
        """Start at the set-points (J,) and stiffness of a LowCmd that moves the robot."""
        self._start = command["motor_cmd"]["q"][self.motors.motor].astype(float)
        self._scale, self._begin = self.motors.stiffness_scale(command), now
        self.over = False

    def command(self, now: float) -> np.ndarray:
        """Return the LowCmd at `now`, s, damping once it is over."""
        since, start, scale = now - self._begin, self._start, self._scale
        for goal, duration, last in self._stages:
            if since < duration:
                share = since / duration
                smooth = share * share * (3 - 2 * share)
                stiffness = scale + (last - scale) * share
                return self.motors.command(start + smooth * (goal - start), stiffness)
            since, start, scale = since - duration, goal, last
        self.over = True
        return self.motors.damp()
