"""Motion within a robot's limits of speed, acceleration and jerk to goals of any rate. Does not import torch.

Plain numbers, joint by joint: for seven joints that takes a fifth of the time of numpy's calls, and it runs 1,000 times
a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import ruckig

from robot_rl.interface.driver import FrankaControl
from robot_rl.interface.robot import Joint, RobotSpec
from robot_rl.util.errors import ConfigError

PERIOD = 0.001
"""Period of the robot's interface, s."""
MARGIN = 0.01
"""Distance that the motion keeps to the position limits, rad."""
BANDWIDTH = 50.0
"""Bandwidth of following a stream of goals, rad/s: a time constant of 20 ms."""
COAST = 3
"""Cycles after a lost one in which the acceleration stays: it is not known which of the last commands counted."""
PHASE, RATE = 0.1, 0.005
"""Gains with which a stream's phase and period follow the arrivals, whose jitter they filter."""


@dataclass(frozen=True, slots=True)
class JointLimits:
    """Limits of a joint, reduced to a share."""

    low: float
    high: float
    speed: float
    acceleration: float
    jerk: float
    share: float
    taper_low: float
    taper_high: float
    slope: float
    offset: float

    @classmethod
    def of(cls, joint: Joint, config: FrankaControl) -> JointLimits:
        assert joint.acceleration is not None and joint.jerk is not None and joint.taper is not None
        top, taper = config.speed * joint.velocity, joint.taper
        most = config.acceleration * joint.acceleration, config.jerk * joint.jerk
        return cls(
            joint.low + MARGIN, joint.high - MARGIN, top, *most, config.speed, taper.low, taper.high, taper.slope,
            taper.offset,
        )  # fmt: skip

    def speeds(self, q: float) -> tuple[float, float]:
        """Return the limits of downward and upward speed at a position, rad; both positive, rad/s."""
        return self._speed(q - self.taper_low), self._speed(self.taper_high - q)

    def _speed(self, room: float) -> float:
        if room <= 0:
            return 0.0
        return min(self.speed, self.share * max(0.0, math.sqrt(self.slope * room) - self.offset))


def joint_limits(robot: RobotSpec, config: FrankaControl) -> list[JointLimits]:
    """Return the limits of a robot's joints, reduced to the config's shares."""
    if missing := [joint.name for joint in robot.joints if None in (joint.acceleration, joint.jerk, joint.taper)]:
        names = ", ".join(missing)
        raise ConfigError(f"robot {robot.name!r}: {names} has no `acceleration`, `jerk` or `taper` in the spec")
    return [JointLimits.of(joint, config) for joint in robot.joints]


class Stream:
    """Line from goal to goal, one period of the stream behind. The period is estimated from the arrivals."""

    def __init__(self, q: Sequence[float], rate: float):
        """Args: `q`: goal before the first, (J,) rad. `rate`: expected rate of goals, Hz."""
        self.goal = self._before = list(q)
        self._still = [0.0] * len(self.goal)
        self._period, self._begins = 1 / rate, -math.inf
        """Estimated period, s, and time at which the newest goal takes effect, s."""

    def add(self, goal: Iterable[float], now: float) -> None:
        """Take a goal (J,), rad, that arrived at `now`, s."""
        expected = self._begins + self._period
        late = now - expected
        if abs(late) > 2 * self._period:  # the first one, or after a gap
            self._begins = now
        else:
            self._begins = expected + PHASE * late
            self._period += RATE * late
        self._before, self.goal = self.goal, list(goal)

    def at(self, now: float) -> tuple[list[float], list[float]]:
        """Return position (J,), rad, and velocity (J,), rad/s, of the line at time `now`, s."""
        share = (now - self._begins) / self._period
        if share >= 1:
            return self.goal, self._still
        share, rate = max(0.0, share), 1 / self._period
        pairs = list(zip(self._before, self.goal, strict=True))
        return [a + share * (b - a) for a, b in pairs], [rate * (b - a) for a, b in pairs]


class Motion:
    """Path that follows a moving target; no tick exceeds a limit.

    A critically damped filter of third order follows the target. Where that would exceed a limit, time-optimal motion
    (Ruckig: Berscheid and Kröger 2021, arXiv 2105.04830) leads to the target instead.
    """

    def __init__(self, limits: list[JointLimits], q: Iterable[float]):
        """Args: `q`: joint positions at rest, (J,) rad."""
        count = len(limits)
        self.limits, self.q, self.v, self.a = limits, list(q), [0.0] * count, [0.0] * count
        """Position, rad, velocity, rad/s, and acceleration, rad/s^2, of the last tick; each (J,)."""
        self._sent = deque([self.q] * 4, maxlen=4)
        """Positions of the last cycles, the newest last."""
        self._otg, self._input = ruckig.Ruckig(count, PERIOD), ruckig.InputParameter(count)
        self._output = ruckig.OutputParameter(count)
        self._input.synchronization = ruckig.Synchronization.No
        self._input.max_velocity = [limit.speed for limit in limits]
        self._input.max_acceleration = [limit.acceleration for limit in limits]
        self._input.max_jerk = [limit.jerk for limit in limits]
        self._optimal = False
        """The path is time-optimal until the target is near."""
        self._coasting = 0
        """Cycles for which the acceleration stays."""

    @property
    def resting(self) -> bool:
        """Return whether the path is at rest."""
        return max(map(abs, self.v)) < 1e-5 and max(map(abs, self.a)) < 1e-3

    def follow(self, target: Sequence[float], velocity: Sequence[float]) -> list[float]:
        """Return the position (J,) after another tick towards a target (J,), rad, that moves at `velocity`, rad/s."""
        target = [min(max(q, limit.low), limit.high) for q, limit in zip(target, self.limits, strict=True)]
        self._optimal = self._optimal and self._far(target, velocity)
        if self._coasting and self._step([0.0] * len(self.q)):
            self._coasting -= 1
        elif self._optimal or not self._filtered(target, velocity):
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
        self._coasting = COAST
        for _ in range(late + missed):
            columns = zip(*list(self._sent)[-3:], strict=True)
            self._sent.append([3 * three - 3 * two + one for one, two, three in columns])
        one, two, three = list(self._sent)[-3:]
        last = list(zip(one, two, three, strict=True))
        self.a = [(z - 2 * y + x) / PERIOD**2 for x, y, z in last]
        # The difference of two positions is the velocity in the middle of a cycle.
        self.q, self.v = three, [(z - y) / PERIOD + a * PERIOD / 2 for (_, y, z), a in zip(last, self.a, strict=True)]

    def brake(self) -> list[float]:
        """Return the position (J,), rad, after another tick of coming to rest."""
        self._input.control_interface = ruckig.ControlInterface.Velocity
        self._optimal = True
        self._advance()
        self._sent.append(self.q)
        return self.q

    def _far(self, target: Sequence[float], velocity: Sequence[float]) -> bool:
        """Return whether the filter would pass a target (J,), rad, that moves at `velocity` (J,), rad/s."""
        rows = zip(self.q, self.v, target, velocity, self.limits, strict=True)
        return any(
            abs(goal - q) + abs(speed - v) / BANDWIDTH > 2 * limit.acceleration / BANDWIDTH**2
            for q, v, goal, speed, limit in rows
        )

    def _filtered(self, target: Sequence[float], velocity: Sequence[float]) -> bool:
        """Advance by the filter, if that exceeds no limit; return whether it did."""
        w = BANDWIDTH
        rows = zip(self.q, self.v, self.a, target, velocity, strict=True)
        return self._step([w**3 * (goal - q) + 3 * w**2 * (speed - v) - 3 * w * a for q, v, a, goal, speed in rows])

    def _step(self, jerks: list[float]) -> bool:
        """Advance at constant jerks (J,), rad/s^3, if that exceeds no limit; return whether it did."""
        h, path = PERIOD, []
        for q, v, a, jerk, limit in zip(self.q, self.v, self.a, jerks, self.limits, strict=True):
            q, v, a = q + (v + (a / 2 + jerk * h / 6) * h) * h, v + (a + jerk * h / 2) * h, a + jerk * h
            if abs(jerk) > limit.jerk or abs(a) > limit.acceleration:
                return False
            down, up = limit.speeds(q)
            if not -down <= v <= up:
                return False
            path.append((q, v, a))
        self.q, self.v, self.a = map(list, zip(*path, strict=True))
        return True

    def _optimally(self, target: Sequence[float], velocity: Sequence[float]) -> None:
        """Advance on the time-optimal path to where the moving target could stop.

        To reach a position, not a position with a velocity, can always be computed. The position is never farther than
        the distance in which the tapered speed limit leaves room for braking.
        """
        places = []
        for q, goal, speed, limit in zip(self.q, target, velocity, self.limits, strict=True):
            down, up = limit.speeds(q)
            place = goal + speed * abs(speed) / (2 * limit.acceleration)
            place = min(max(place, limit.low), limit.high)
            room = 2 * limit.acceleration
            places.append(min(max(place, q - down**2 / room), q + up**2 / room))
        self._input.control_interface = ruckig.ControlInterface.Position
        self._input.target_position = places
        self._advance()

    def _advance(self) -> None:
        given, output = self._input, self._output
        given.current_position, given.current_velocity, given.current_acceleration = self.q, self.v, self.a
        self._otg.update(given, output)
        self.q, self.v, self.a = output.new_position, output.new_velocity, output.new_acceleration
