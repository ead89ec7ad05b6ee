"""How a robot stops: it brakes and holds, it is damped and sinks, or its own controller holds or stops it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from real.control.follow import Goal
from real.drivers.state import MANY, JointReading
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.robot import RobotSpec

if TYPE_CHECKING:
    from real.control.loop import CommandLoop

STALE_STATE, STALE_GOAL = "stale state", "stale goal"
"""Temporary reasons to hold; an arm resumes by itself, a legged robot does not."""
GAP = "command gap"
"""Reason of an arm to hold until the next goal: its commands had paused."""
OPERATOR, E_STOP, E_STOP_LOST = "operator", "e_stop topic", "e_stop topic: heartbeat lost"
BY_PERSON = (OPERATOR, E_STOP, E_STOP_LOST)
"""Reasons of stops by a person: no fault of the policy, and never reset by a program."""


class SafeStop(Protocol):
    """Strategy of the command loop for ticks in which it must not follow the goal."""

    sinks: bool
    """The robot sinks to the ground and has to stand up again."""
    is_damped: bool
    """The robot sinks and is damped now, so that it has to stand up."""

    def violated(self, now: float, reading: JointReading) -> str:
        """Return the violated limit for which a stop must latch; empty if there is none."""

    def hold(self, now: float, reading: JointReading, goal: Goal, reason: str) -> None:
        """Hold in this tick, for `reason`."""

    def follows(self, now: float) -> None:
        """Take note that the goal is followed in this tick."""


class BrakeAndHold:
    """Brake, and go on sending the position where the arm stopped, as a forward controller keeps the last command.

    An arm that was moved by hand with its drives off is held where it is: otherwise the drives would jerk it back when
    they are switched on.
    """

    sinks = is_damped = False

    def __init__(self, loop: CommandLoop):
        self.loop = loop
        self._last_tracking_ok = math.inf
        """Last time at which the held arm was at its held position, s."""
        self._near, self._refused = -math.inf, 0
        """Arrival of the last state near the command, s, and the number of states that had been refused as jumps."""

    def violated(self, now: float, reading: JointReading) -> str:
        """Return the latched stop of the robot's own process."""
        return self.loop.driver.objection(now)

    def follows(self, now: float) -> None:
        self._last_tracking_ok = now

    def hold(self, now: float, reading: JointReading, goal: Goal, reason: str) -> None:
        loop = self.loop
        self._yield_to(now, reading)
        if not loop.shield.moving(loop.setpoint, loop.rate):
            loop.rate = torch.zeros_like(loop.rate)  # no rounding error
        width = loop.sent_width if reason == "stop" else goal.gripper
        loop.advance(*loop.follower.brake(loop.setpoint, loop.rate), width)

    def _yield_to(self, now: float, reading: JointReading) -> None:
        loop, safety = self.loop, self.loop.safety
        current = now - reading.received <= safety.state_timeout
        rests = not loop.shield.moving(loop.setpoint, loop.rate)
        joints = torch.from_numpy(reading.position).float()[None]
        away, refused = loop.shield.mismatch(loop.setpoint, joints, 0.0, safety), loop.driver.state.jumps.count
        if reading.received > self._near and not away:
            self._near, self._refused = reading.received, refused
        if not (current and rests and away):
            self._last_tracking_ok = now
        elif refused - self._refused >= MANY:
            return  # no arm moves like that: a command that went where such states are would be a jump itself
        elif now - self._last_tracking_ok > safety.moved_patience:
            loop.events.add("moved while held")
            measured = loop.shield.hold(joints)
            loop.setpoint = loop.shield.admit(measured, measured)[0]


class RobotHolds(BrakeAndHold):
    """Brake, and then send nothing: the robot's own controller holds it when commands end."""

    def hold(self, now: float, reading: JointReading, goal: Goal, reason: str) -> None:
        if self.loop.shield.moving(self.loop.setpoint, self.loop.rate):
            super().hold(now, reading, goal, reason)


class Damp:
    """Damp a legged robot: if it were held stiff in mid-stride, it would topple. Until it stands up again its motors
    have no stiffness, since full stiffness would jerk it up."""

    sinks = True

    def __init__(self, loop: CommandLoop):
        self.loop = loop
        self.is_damped = True
        self._limits = PostureLimits(loop.pipeline.robot, loop.safety)
        self._stiff_since = -math.inf
        """Start of the newest sequence of commands with stiffness, s."""

    def violated(self, now: float, reading: JointReading) -> str:
        """Return the violated limit of posture, or the guard's objection."""
        if self.is_damped:
            return ""
        # Without the robot's states the guard's reports are missing too, and the robot is damped in any case.
        safety = self.loop.safety
        current = now - reading.received <= safety.state_timeout
        expected = current and now - self._stiff_since > safety.guard_patience
        return self._limits.broken(reading) or (self.loop.driver.objection(now) if expected else "")

    def follows(self, now: float) -> None:
        self._stiff_since = now if self.is_damped else self._stiff_since
        self.is_damped = False

    def hold(self, now: float, reading: JointReading, goal: Goal, reason: str) -> None:
        loop = self.loop
        loop.setpoint, loop.rate = loop.measured(), torch.zeros_like(loop.rate)
        self.is_damped = True
        loop.driver.damp()


class RobotStops:
    """Tell the robot's own controller to stop, at once and once per hold: it brakes and balances better than a ramp of
    commands, which a dying process may not finish."""

    sinks = is_damped = False

    def __init__(self, loop: CommandLoop):
        self.loop, self._told = loop, False
        self._limits = PostureLimits(loop.pipeline.robot, loop.safety)

    def violated(self, now: float, reading: JointReading) -> str:
        """Return the violated limit of posture, or the driver's objection."""
        return self._limits.broken(reading) or self.loop.driver.objection(now)

    def follows(self, now: float) -> None:
        self._told = False

    def hold(self, now: float, reading: JointReading, goal: Goal, reason: str) -> None:
        loop = self.loop
        loop.setpoint, loop.rate = loop.measured(), torch.zeros_like(loop.rate)
        if not self._told:
            loop.driver.rest()
            self._told = True


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


STOPS: dict[str, type[Any]] = {
    "brake_and_hold": BrakeAndHold, "robot_holds": RobotHolds, "damp": Damp, "robot_stops": RobotStops,
}  # fmt: skip
"""Classes by `DriverConfig.stop`."""
