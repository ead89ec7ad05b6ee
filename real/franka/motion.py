"""Motion within a robot's limits of speed, acceleration and jerk to goals of any rate. Does not import torch."""

from collections import deque

import numpy as np
import ruckig

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError

PERIOD = 0.001
"""Period of the robot's interface, s."""
MARGIN = 0.01
"""Distance that the motion keeps to the position limits, rad."""
BANDWIDTH = 50.0
"""Bandwidth of following a stream of goals, rad/s: a time constant of 20 ms."""
JERK = 0.25
"""Share of the jerk limit that is used: the robot bridges a lost cycle at constant acceleration, after which the motion
seems to have four times the jerk."""
PHASE, RATE = 0.1, 0.005
"""Gains with which a stream's phase and period follow the arrivals, whose jitter they filter."""


class Limits:
    """Limits of a robot's joints, reduced to a share."""

    def __init__(self, robot: RobotSpec, share: float):
        def of(name: str) -> np.ndarray:
            return np.array([getattr(joint, name) for joint in robot.joints], float)

        if missing := [joint.name for joint in robot.joints if joint.jerk is None or joint.taper is None]:
            raise ConfigError(f"robot {robot.name!r}: {', '.join(missing)} has no `jerk` or no `taper` in the spec")
        self.low, self.high = of("low") + MARGIN, of("high") - MARGIN
        self.speed, self.acceleration, self.jerk = share * of("velocity"), share * of("acceleration"), JERK * of("jerk")
        self._share, taper = share, [joint.taper for joint in robot.joints]
        fields = ("low", "high", "slope", "offset")
        self._low, self._high, self._slope, self._offset = (np.array([getattr(t, f) for t in taper]) for f in fields)

    def speeds(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the limits of downward and upward speed at positions (J,), both (J,) and positive, rad/s."""
        room = np.array([q - self._low, self._high - q]).clip(0.0)
        down, up = self._share * (np.sqrt(self._slope * room) - self._offset).clip(0.0)
        return np.minimum(down, self.speed), np.minimum(up, self.speed)


class Stream:
    """Line from goal to goal, one period of the stream behind. The period is estimated from the arrivals."""

    def __init__(self, q: np.ndarray, rate: float):
        """Args: `q`: goal before the first, (J,) rad. `rate`: expected rate of goals, Hz."""
        self.goal, self._before = q, q
        self._period, self._begins = 1 / rate, -np.inf
        """Estimated period, s, and time at which the newest goal takes effect, s."""

    def add(self, goal: np.ndarray, now: float) -> None:
        """Take a goal (J,), rad, that arrived at `now`, s."""
        expected = self._begins + self._period
        late = now - expected
        if abs(late) > 2 * self._period:  # the first one, or after a gap
            self._begins = now
        else:
            self._begins = expected + PHASE * late
            self._period += RATE * late
        self._before, self.goal = self.goal, goal

    def at(self, now: float) -> tuple[np.ndarray, np.ndarray]:
        """Return position (J,), rad, and velocity (J,), rad/s, of the line at time `now`, s."""
        share = (now - self._begins) / self._period
        if share >= 1:
            return self.goal, np.zeros_like(self.goal)
        step = self.goal - self._before
        return self._before + max(0.0, share) * step, step / self._period


class Motion:
    """Path that follows a moving target; no tick exceeds a limit.

    A critically damped filter of third order follows the target. Where that would exceed a limit, time-optimal motion
    (Ruckig: Berscheid and Kröger 2021, arXiv 2105.04830) leads to the target instead.
    """

    def __init__(self, limits: Limits, q: np.ndarray):
        """Args: `q`: joint positions at rest, (J,) rad."""
        self.limits, count = limits, len(q)
        self.q, self.v, self.a = q.copy(), np.zeros(count), np.zeros(count)
        """Position, rad, velocity, rad/s, and acceleration, rad/s^2, of the last tick; each (J,)."""
        self._sent = deque([self.q] * 4, maxlen=4)
        """Positions of the last cycles, the newest last."""
        self._otg, self._input = ruckig.Ruckig(count, PERIOD), ruckig.InputParameter(count)
        self._output = ruckig.OutputParameter(count)
        self._input.synchronization = ruckig.Synchronization.No
        self._input.max_velocity, self._input.max_acceleration = limits.speed.tolist(), limits.acceleration.tolist()
        self._input.max_jerk = limits.jerk.tolist()
        self._near = 2 * limits.acceleration / BANDWIDTH**2
        """Error up to which the filter takes over without passing its target, (J,) rad."""
        self._optimal = False
        """The path is time-optimal until the target is near."""

    @property
    def resting(self) -> bool:
        """Return whether the path is at rest."""
        return bool(np.abs(self.v).max() < 1e-5 and np.abs(self.a).max() < 1e-3)

    def follow(self, target: np.ndarray, velocity: np.ndarray) -> np.ndarray:
        """Return the position (J,) after another tick towards a target (J,), rad, that moves at `velocity`, rad/s."""
        target = target.clip(self.limits.low, self.limits.high)
        error = np.abs(target - self.q) + np.abs(velocity - self.v) / BANDWIDTH
        self._optimal = self._optimal and bool((error > self._near).any())
        if self._optimal or not self._filtered(target, velocity):
            self._optimal = True
            self._optimally(target, velocity)
        self._sent.append(self.q)
        return self.q

    def bridge(self, late: bool, missed: int) -> None:
        """Go on after lost cycles from where the robot is, which bridges them at constant acceleration.

        Args: `late`: the last position came too late. `missed`: number of cycles since, without a position.
        """
        if late:
            self._sent.pop()
        for _ in range(late + missed):
            one, two, three = list(self._sent)[-3:]
            self._sent.append(3 * three - 3 * two + one)
        one, two, three = list(self._sent)[-3:]
        self.a = (three - 2 * two + one) / PERIOD**2
        # The difference of two positions is the velocity in the middle of a cycle.
        self.q, self.v = three, (three - two) / PERIOD + self.a * PERIOD / 2

    def brake(self) -> np.ndarray:
        """Return the position (J,), rad, after another tick of coming to rest."""
        self._input.control_interface = ruckig.ControlInterface.Velocity
        self._optimal = True
        self._advance()
        self._sent.append(self.q)
        return self.q

    def _filtered(self, target: np.ndarray, velocity: np.ndarray) -> bool:
        """Advance by the filter, if that exceeds no limit; return whether it did."""
        w, h, limits = BANDWIDTH, PERIOD, self.limits
        jerk = w**3 * (target - self.q) + 3 * w**2 * (velocity - self.v) - 3 * w * self.a
        a = self.a + jerk * h
        v = self.v + (self.a + jerk * h / 2) * h
        q = self.q + (self.v + (self.a / 2 + jerk * h / 6) * h) * h
        if (np.abs(jerk) > limits.jerk).any() or (np.abs(a) > limits.acceleration).any():
            return False
        down, up = limits.speeds(q)
        if (v > up).any() or (v < -down).any():
            return False
        self.q, self.v, self.a = q, v, a
        return True

    def _optimally(self, target: np.ndarray, velocity: np.ndarray) -> None:
        """Advance on the time-optimal path to where the moving target could stop.

        To reach a position, not a position with a velocity, can always be computed. The position is never farther than
        the distance in which the tapered speed limit leaves room for braking.
        """
        stopping = velocity * np.abs(velocity) / (2 * self.limits.acceleration)
        down, up = (speed**2 / (2 * self.limits.acceleration) for speed in self.limits.speeds(self.q))
        place = (target + stopping).clip(self.limits.low, self.limits.high)
        self._input.control_interface = ruckig.ControlInterface.Position
        self._input.target_position = place.clip(self.q - down, self.q + up).tolist()
        self._advance()

    def _advance(self) -> None:
        given, output = self._input, self._output
        given.current_position, given.current_velocity = self.q.tolist(), self.v.tolist()
        given.current_acceleration = self.a.tolist()
        self._otg.update(given, output)
        self.q, self.v = np.array(output.new_position), np.array(output.new_velocity)
        self.a = np.array(output.new_acceleration)
