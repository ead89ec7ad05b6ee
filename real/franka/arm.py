"""The arm's process: it alone sends motion to the robot, 1,000 times a second, and outlives whoever sets goals.

`python -m real.franka.arm FD JSON`, started by `real.franka.node`. Goals that stop, or a node that ends, brake the arm;
then the robot's own controller holds it.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pylibfranka as fci

from real.control.memory import lock_memory
from real.control.timing import STALL, prefer_realtime
from real.franka.link import ArmState, Goal, Link, Recover
from real.franka.losses import LostCycles
from real.franka.motion import PERIOD, Motion, Stream, joint_limits
from real.franka.process import ERRORS, serve, words
from real.held.report import Report
from robot_rl.interface.driver import FrankaControl
from robot_rl.interface.robot import RobotSpec
from robot_rl.robots import robots

RATED = 250
"""Cycles over which the loop's rate is measured."""
LATE = 0.0008
"""Age of a state at which its answer would come too late, s. It is not sent: the robot would not use it."""
REST = 0.5
"""Time at rest without goals after which the motion ends, s."""
START = 0.2
"""Maximum distance of the first goal from the arm, rad."""
SILENCE, READY = "no goals", ""


class Arm:
    """Loop of the arm."""

    def __init__(self, robot: fci.Robot, spec: RobotSpec, link: Link, dry_run: bool = False):
        assert isinstance(spec.driver, FrankaControl)
        self.robot, self.spec, self.config, self.link, self.dry_run = robot, spec, spec.driver, link, dry_run
        self._every = round(1 / PERIOD / spec.command_rate)
        """Cycles per state that is passed on."""
        self.limits = joint_limits(spec, spec.driver)
        self.ending = False
        self.fault = ""
        """Reason of a latched stop; empty if there is none."""
        self._reported: Report | None = None
        self._goal: Goal | None = None
        self._following = False
        """The arm followed a goal in the last cycle."""
        self._stream: Stream | None = None
        self._losses = LostCycles()
        self._cycles = self._lost = self._in_row = self._stalls = self._count = 0
        self._began = self._arrived = time.monotonic()
        """Time of the first state of those over which the rate is measured, and of the newest, s."""
        self._rate = self._answer = self._slowest = 0.0
        """Rate of states, Hz, and longest time to a command, s, of the last cycles and of those since."""

    def run(self) -> None:
        """Read the robot, and move it while there are goals, until the node or a signal ends the process."""
        prefer_realtime(60)
        lock_memory()
        gc.disable()  # a collection would take longer than a cycle, and the loop creates no reference cycles
        while not self.ending:
            state = self.robot.read_once()
            if fault := self._mode_fault(state):
                self._latch(fault)
            self._take(state)
            if self._may_follow(state.q_d):
                try:
                    self._move()
                except ERRORS as error:
                    self._count_silence()
                    mode = self._mode_fault(self.robot.read_once())
                    self._latch(", ".join(filter(None, (words(error), mode))))
                finally:
                    self._following = False

    def _move(self) -> None:
        """Follow goals until there have been none for a while."""
        control = None if self.dry_run else self.robot.start_joint_position_control(fci.ControllerMode.JointImpedance)
        state = control.readOnce()[0] if control else self.robot.read_once()
        motion, self._stream = Motion(self.limits, state.q_d), Stream(state.q_d, self.spec.command_rate)
        rested, self._losses, self._arrived = 0, LostCycles(), time.monotonic()
        while True:
            self._following = not self.ending and self._may_follow(motion.q)
            q = motion.follow(*self._stream.at(time.monotonic())) if self._following else motion.brake()
            rested = 0 if self._following or not motion.resting else rested + 1
            finished = rested * PERIOD >= (0.01 if self.ending or self.fault else REST)
            sent = time.monotonic() - self._arrived < LATE
            if control and (sent or finished):
                command = fci.JointPositions(q)
                command.motion_finished = finished
                control.writeOnce(command)
                self._slowest = max(self._slowest, time.monotonic() - self._arrived)
            if finished:
                return
            state, elapsed = control.readOnce() if control else (self.robot.read_once(), None)
            self._take(state)
            if elapsed:
                late, missed = self._count_lost(state, elapsed.to_sec())
                if late or missed or not sent:
                    motion.bridge(late or not sent, missed)
            if not self.fault and (fault := self._contact(state)):
                self._latch(fault)

    def _count_lost(self, state: Any, elapsed: float) -> tuple[bool, int]:
        """Return whether the last command was late, and the number of cycles since that had none."""
        cycles = max(1, round(elapsed / PERIOD))
        late, missed = self._losses.add(cycles, state.control_command_success_rate)
        self._cycles += cycles
        self._stalls += cycles * PERIOD > STALL
        self._lost += late + missed
        self._in_row = max(self._in_row, self._losses.in_row)
        return late, missed

    def _count_silence(self) -> None:
        """Count the cycles since the newest state, if the robot ended the motion because this process stood still."""
        silent = int((time.monotonic() - self._arrived) / PERIOD) - 1
        if silent > 0:
            self._losses.end(silent)
            self._cycles += silent
            self._stalls += silent * PERIOD > STALL
            self._lost += silent
            self._in_row = max(self._in_row, self._losses.in_row)

    # ---- messages -------------------------------------------------------------------------------------------------
    def _take(self, state: Any) -> None:
        """Pass a state on, and read the messages of the node."""
        self._arrived = now = time.monotonic()
        self._count += 1
        if self._count == 1:
            self._began = now
        if self._count % RATED == 0:
            self._rate, self._answer = RATED / (now - self._began), self._slowest
            self._began, self._slowest = now, 0.0
        if self._count % self._every == 0:
            forces = tuple(state.tau_J), tuple(state.tau_ext_hat_filtered), tuple(state.O_F_ext_hat_K)
            counts = self._cycles, self._lost, self._in_row, self._stalls
            success = state.control_command_success_rate
            measured = self._rate, self._answer, state.m_total
            self.link.send(ArmState(now, tuple(state.q), tuple(state.dq), *forces, success, *counts, *measured))
        while (message := self.link.receive()) is not None:
            if isinstance(message, Goal):
                self._goal = message
                if self._stream:
                    self._stream.add(message.q, message.time)
            elif isinstance(message, Recover):
                self._recover(state)
        self.ending |= self.link.closed

    def _may_follow(self, q: Sequence[float]) -> bool:
        """Return whether there is a goal to follow from positions `q` (7,), rad; report why, if there is none."""
        goal = self._goal
        if self.fault or goal is None or time.monotonic() - goal.time > self.config.goal_timeout:
            self._say(self.fault or SILENCE)
            return False
        if not self._following and max(abs(a - b) for a, b in zip(goal.q, q, strict=True)) > START:
            self._say(f"the first goal is more than {START:g} rad away from the arm")
            return False
        self._say(READY)
        return True

    # ---- stops ----------------------------------------------------------------------------------------------------
    def _mode_fault(self, state: Any) -> str:
        """Return the reason for which the robot cannot move; empty if it can."""
        mode = state.robot_mode
        if mode in (fci.RobotMode.Idle, fci.RobotMode.Move):
            return ""
        return f"robot mode {mode.name}" + (f": {errors}" if (errors := _errors(state.current_errors)) else "")

    def _contact(self, state: Any) -> str:
        """Return the limit of external forces that is exceeded; empty if none is."""
        force, torque = math.hypot(*state.O_F_ext_hat_K[:3]), max(map(abs, state.tau_ext_hat_filtered))
        if force > self.config.max_force:
            return f"external force of {force:.0f} N, limit {self.config.max_force:g} N"
        if torque > self.config.max_torque:
            return f"external torque of {torque:.0f} N m at a joint, limit {self.config.max_torque:g} N m"
        return ""

    def _latch(self, reason: str) -> None:
        self.fault = self.fault or reason
        self._say(self.fault)

    def _recover(self, state: Any) -> None:
        """Recover the robot from its errors, and forget a latched stop."""
        try:
            if state.robot_mode == fci.RobotMode.Reflex and not self.dry_run:
                self.robot.automatic_error_recovery()
            self.fault, self._goal = "", None
        except ERRORS as error:
            self.fault = f"recovery refused: {words(error)}"

    def _say(self, reason: str) -> None:
        report = Report(self.fault or reason, bool(self.fault))
        if report != self._reported and self.link.send(report):  # a node that stood still gets it later
            self._reported = report


def _errors(errors: Any) -> str:
    """Return Franka's names of the errors that are set."""
    return ", ".join(name for name in dir(errors) if not name.startswith("_") and getattr(errors, name) is True)


def connect(settings: dict[str, Any], link: Link) -> Arm:
    """Return the arm at an address, with thresholds, impedance and load set, except in a dry run. Raise what the robot
    refuses."""
    spec = robots.get(settings["robot"])
    assert isinstance(spec.driver, FrankaControl)
    config = replace(spec.driver, **settings["limits"])
    realtime = fci.RealtimeConfig.kEnforce if settings["realtime"] else fci.RealtimeConfig.kIgnore
    robot = fci.Robot(settings["host"], realtime)
    if not settings["dry_run"]:
        configure(robot, config)
    return Arm(robot, replace(spec, driver=config), link, settings["dry_run"])


def configure(robot: fci.Robot, config: FrankaControl) -> None:
    """Set thresholds, impedance and load."""
    torque, force = [config.collision_torque] * 7, [config.collision_force] * 6
    robot.set_collision_behavior(torque, torque, force, force)
    if config.impedance:
        robot.set_joint_impedance(config.impedance)
    if config.load is not None:
        robot.set_load(config.load, config.load_center, config.load_inertia)


if __name__ == "__main__":
    sys.exit(serve(connect))
