"""The node in front of a Franka arm: the topics of an arm on one side, the processes of arm and hand on the other."""

from __future__ import annotations

import json
import logging
import math
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from real.bus import Node, QoS, Stamped, qos
from real.bus.layout import template
from real.bus.stamps import stamped
from real.control.timing import STALL, prefer_realtime, prefer_realtime_bus
from real.drivers.lowlevel import GUARD_RATE, REPORT
from real.drivers.names import driver_names, frames
from real.franka.link import ArmState, Goal, Grip, HandState, Link, Recover, Report
from real.topics import (
    DIAGNOSTICS,
    DIAGNOSTICS_TOPIC,
    ERROR,
    GUARD_TOPIC,
    INT,
    OK,
    RECOVER_TOPIC,
    STATUS,
    WARN,
    GuardReport,
    diagnostics,
    status,
)  # fmt: skip
from robot_rl.interface.driver import FrankaControl
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
STATE = QoS(depth=10, blocking=0.0)
"""Quality of service of states: publishing never blocks."""
SLOW = 500.0
"""Rate of the robot's states below which it is not moved, Hz."""
CONNECT = 10.0
"""Longest wait for the first state of arm and hand, s."""
GONE = 0.2
"""Silence of the arm's process after which it counts as standing still, s."""
END = 5.0
"""Longest wait for the arm to come to rest at the end, s."""
WATCH = 0.5
"""Interval between checks for other writers of commands, s."""


@dataclass(frozen=True)
class Part:
    """Process of arm or hand, and the link to it."""

    process: subprocess.Popen[bytes]
    link: Link


def start(module: str, settings: dict[str, Any]) -> Part:
    """Start a process; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", module, str(theirs.fileno()), json.dumps(settings)]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], process_group=0)
    theirs.close()
    return Part(process, Link(ours))


class FrankaNode:
    """Robot process: joint states, wrench and reports out; joint positions and gripper widths in."""

    def __init__(
        self, node: Node, robot: RobotSpec, host: str, dry_run: bool = False, realtime: bool = False,
        limits: dict[str, float] | None = None,
    ):  # fmt: skip
        if not isinstance(robot.driver, FrankaControl):
            raise UserError(f"robot {robot.name!r} does not speak Franka's protocol; see `robot-rl robots`")
        config, changed = robot.driver, dict[str, Any](limits or {})
        try:
            replace(config, **changed)
        except ValueError as error:
            raise UserError(str(error)) from None
        self.node, self.robot, self.host = node, robot, host
        self.report = self._said = Report("no state yet", False)
        """State of the robot as reported; `_said`: as the arm's process said it last."""
        self.counts: dict[str, int] = {}
        """Number of times that goals were not followed, by reason."""
        self.refused: dict[str, int] = {}
        """Number of refused commands, by reason."""
        self.arm_state: ArmState | None = None
        self.hand_state = HandState(robot.gripper.width if robot.gripper else 0.0, 0.0, -math.inf)
        self.foreign = ""
        """Other writer of commands; empty if there is none."""
        self._closing = threading.Event()
        self._count, self._recoveries = 0, 0
        self._raised = False
        """The bus's threads have real-time priority."""
        settings = {"robot": robot.name, "host": host, "dry_run": dry_run, "realtime": realtime, "limits": changed}
        self.arm = start("real.franka.arm", settings)
        self.hand = start("real.franka.hand", settings) if robot.gripper else None
        names = list(driver_names(node, robot))
        zero = np.zeros(len(names))
        base = {"header": {"frame_id": frames(node, robot)[0]}}
        fields = {"name": names, "position": zero, "velocity": zero, "effort": zero}
        self._joints = template("sensor_msgs/msg/JointState", **base, **fields)
        self._wrench = template("geometry_msgs/msg/WrenchStamped", **base)
        self.states = node.publisher("sensor_msgs/msg/JointState", config.joint_states, STATE)
        self.wrench = node.publisher("geometry_msgs/msg/WrenchStamped", "external_wrench", STATE)
        self.reports = node.publisher(STATUS, GUARD_TOPIC, REPORT)
        self.health = node.publisher(DIAGNOSTICS, DIAGNOSTICS_TOPIC, qos.VIEWER)
        array = "std_msgs/msg/Float64MultiArray"
        self.command = node.subscribe(array, config.command, qos.COMMAND, self._on_command)
        self.gripper = node.subscribe(array, config.gripper_command, qos.COMMAND, self._on_gripper)
        node.subscribe(INT, RECOVER_TOPIC, qos.DEFAULT, self._on_recover)

    # ---- commands -------------------------------------------------------------------------------------------------
    def _on_command(self, sample: Stamped) -> None:
        if not self._raised:
            self._raised = True
            prefer_realtime_bus()
        q = self._numbers(sample, len(self.robot.joints))
        if q is not None:
            self.arm.link.send(Goal(sample.received, q))

    def _on_gripper(self, sample: Stamped) -> None:
        width = self._numbers(sample, 1)
        if width is not None and self.hand and self.robot.gripper:
            opened = min(max(0.0, width[0]), self.robot.gripper.width)
            self.hand.link.send(Grip(opened, self.robot.gripper.force))

    def _numbers(self, sample: Stamped, count: int) -> tuple[float, ...] | None:
        """Return the numbers of a command; None if it is refused."""
        numbers = tuple(float(x) for x in sample.msg.data)
        bad = "foreign writer" if self.foreign else ""
        bad = bad or ("wrong number of values" if len(numbers) != count else "")
        bad = bad or ("not finite" if not all(map(math.isfinite, numbers)) else "")
        if bad:
            self.refused[bad] = self.refused.get(bad, 0) + 1
            return None
        return numbers

    def _on_recover(self, _: Stamped) -> None:
        self._recoveries += 1
        self.arm.link.send(Recover(self._recoveries))

    # ---- loop -----------------------------------------------------------------------------------------------------
    def run(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """Pass states and reports on until `close`; raise UserError if the robot is lost."""
        links = {part.link.fileno(): part for part in (self.arm, self.hand) if part}
        try:
            self._wait_ready(links)
            if not self._closing.is_set():
                say(f"{self.robot.name} at {self.host} is up: {self._preflight()}; Ctrl-C ends it")
            prefer_realtime(43)
            watched = diagnosed = time.monotonic()
            while not self._closing.is_set():
                self._take(links, 0.05, say)
                now = time.monotonic()
                if now - watched > WATCH:
                    watched, self.foreign = now, self._foreign_writer()
                if now - diagnosed > 1.0:
                    diagnosed = now
                    self.health.publish(diagnostics(self._diagnosis()))
        finally:
            self._end()

    def _wait_ready(self, links: dict[int, Part]) -> None:
        end = time.monotonic() + CONNECT
        while self.arm_state is None or not self.arm_state.rate or (self.hand and self.hand_state.time < 0):
            if self._closing.is_set():
                return
            self._take(links, 0.1)
            if time.monotonic() > end:
                what = "arm" if self.arm_state is None else "hand"
                raise UserError(f"no state of the {what} at {self.host} within {CONNECT:g} s")

    def _preflight(self) -> str:
        """Return what was found before the first motion; raise UserError if the loop is too slow."""
        state = self.arm_state
        assert state is not None
        if state.rate < SLOW:
            raise UserError(
                f"{self.robot.name} at {self.host}: {state.rate:.0f} states arrive in a second, and the robot sends "
                "1000; use a wired network of its own, and a computer with nothing else to do"
            )
        home = np.abs(np.array(state.q) - self.robot.home).max()
        where = f"{home:.2f} rad from home, {state.mass:.2f} kg on the flange, {state.rate:.0f} states a second"
        return f"{where}; {self.states.topic} at {self.robot.state_rate:g} Hz"

    def _take(self, links: dict[int, Part], timeout: float, say: Callable[[str], None] = lambda _text: None) -> None:
        """Wait for messages of arm and hand, and pass them on."""
        for number in select.select(list(links), [], [], timeout)[0]:
            part = links[number]
            while (message := part.link.receive()) is not None:
                if isinstance(message, ArmState):
                    self.arm_state = message
                    self._publish(message)
                elif isinstance(message, HandState):
                    self.hand_state = message
                elif isinstance(message, Report):
                    self._said = message
            if part.link.closed:
                name = "arm" if part is self.arm else "hand"
                why = f": {self._said.reason}" if self._said.latched else ""
                raise UserError(f"the process of the {name} has ended; {self.robot.name} at {self.host}{why}")
        age = time.monotonic() - self.arm_state.time if self.arm_state else 0.0
        report = self._said if age < GONE else Report(f"no state of the robot for {GONE:g} s", False)
        if report != self.report:
            self._change(report, say)

    def _change(self, report: Report, say: Callable[[str], None]) -> None:
        if report.reason:
            self.counts[report.reason] = self.counts.get(report.reason, 0) + 1
        say(report.reason or "following goals")
        self.report = report
        self.reports.publish(self._guard_report().message())

    def _publish(self, state: ArmState) -> None:
        fingers = len(self.robot.fingers)
        half = self.hand_state.width / max(1, fingers)
        position, velocity = np.array([*state.q, *[half] * fingers]), np.array([*state.dq, *[0.0] * fingers])
        effort = np.array([*state.tau, *[0.0] * fingers])
        self.states.publish(self._joints.write(position=position, velocity=velocity, effort=effort, **stamped()))
        if self.wrench.matched:
            names = [f"wrench.{kind}.{axis}" for kind in ("force", "torque") for axis in "xyz"]
            self.wrench.publish(self._wrench.write(**stamped(), **dict(zip(names, state.wrench, strict=True))))
        self._count += 1
        if self._count % round(self.robot.command_rate / GUARD_RATE) == 0:
            self.reports.publish(self._guard_report().message())

    def _guard_report(self) -> GuardReport:
        stalls = int(self.arm_state.stalls) if self.arm_state else 0
        return GuardReport(self.report.reason, self.report.latched, self.counts, stalls)

    def _foreign_writer(self) -> str:
        writers = self.command.writers()
        return f"{' and '.join(writers)} send on {self.command.topic}" if len(writers) > 1 else ""

    def _diagnosis(self) -> Any:
        state = self.arm_state
        assert state is not None
        level = ERROR if self.report.latched else WARN if self.foreign else OK
        share = state.lost / max(1.0, state.cycles)
        values = {
            "success rate": f"{state.success_rate:.3f}", "cycles": int(state.cycles), "lost": int(state.lost),
            "lost share": f"{share:.5f}", "states, Hz": f"{state.rate:.0f}", "answer, ms": f"{1000 * state.answer:.2f}",
            "mass on the flange, kg": f"{state.mass:.2f}", "lost in a row": int(state.lost_in_row),
            f"stalls over {1000 * STALL:.0f} ms": int(state.stalls), "foreign writer": self.foreign,
        } | {f"refused: {reason}": count for reason, count in self.refused.items()}  # fmt: skip
        return status(f"{self.node.full_name.lstrip('/')}: robot", level, self.report.reason, values)

    def close(self) -> None:
        """Make `run` return, with the arm at rest."""
        self._closing.set()

    def _end(self) -> None:
        for part in filter(None, (self.arm, self.hand)):
            part.process.terminate()
        for part in filter(None, (self.arm, self.hand)):
            try:
                part.process.wait(END)
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()
            part.link.close()

    def summary(self) -> str:
        """Return a summary of the run in one line."""
        state = self.arm_state
        if state is None:
            return "the robot was not reached"
        lost = f"{int(state.lost)} of {int(state.cycles)} cycles lost, at most {int(state.lost_in_row)} in a row"
        return f"{lost}; stood still {int(state.stalls)} times; not following: {json.dumps(self.counts)}"
