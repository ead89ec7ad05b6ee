"""The node in front of an arm: the topics of an arm on one side, the processes that hold its parts on the other."""

from __future__ import annotations

import json
import math
import select
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from real.bus import Node, QoS, Stamped, qos
from real.control.timing import prefer_realtime, prefer_realtime_bus
from real.drivers.lowlevel import GUARD_RATE, REPORT
from real.held.report import Report
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
from robot_rl.interface.driver import HeldArm
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import UserError

STATE = QoS(depth=10, blocking=0.0)
"""Quality of service of states: publishing never blocks."""
GONE = 0.2
"""Silence of the arm's process after which it counts as standing still, s."""
END = 5.0
"""Longest wait for the arm to come to rest at the end, s."""
WATCH = 0.5
"""Interval between checks for other writers of commands, s."""
Say = Callable[[str], None]


class Channel(Protocol):
    """One end of a local socket between the node and a process, which keeps the bounds of messages."""

    closed: bool
    """The other process has ended."""

    def fileno(self) -> int: ...
    def receive(self) -> Any:
        """Return the next message; None if there is none."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Part:
    """Process that holds a part of the robot, and the link to it."""

    name: str
    program: str
    process: subprocess.Popen[bytes]
    link: Any


def start(name: str, command: list[str], link: Callable[[socket.socket], Channel], settings: dict[str, Any]) -> Part:
    """Start a process as `command FD JSON`; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [*command, str(theirs.fileno()), json.dumps(settings)]
    try:
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], process_group=0)
    except OSError as error:
        raise UserError(f"cannot start {command[0]}: {error.strerror}") from None
    theirs.close()
    return Part(name, command[0], process, link(ours))


class HeldNode(ABC):
    """Robot process: joint states and reports out; joint positions and gripper widths in."""

    CONNECT = 10.0
    """Longest wait for the first state of all parts, s."""
    SILENT = "is its power on?"
    """What to look at if no state arrives."""

    def __init__(self, node: Node, robot: RobotSpec, where: str):
        """Args: `where`: address or port, for messages."""
        config = robot.driver
        assert isinstance(config, HeldArm)
        self.node, self.robot, self.where = node, robot, where
        self.parts: list[Part] = []
        self.report = self._said = Report("no state yet", False)
        """State of the robot as reported; `_said`: as the arm's process said it last."""
        self.counts: dict[str, int] = {}
        """Number of times that goals were not followed, by reason."""
        self.refused: dict[str, int] = {}
        """Number of refused commands, by reason."""
        self.foreign = ""
        """Other writer of commands; empty if there is none."""
        self._closing, self._checked = threading.Event(), False
        """`_checked`: the robot has passed `preflight`. Before, nothing is published, and no command is passed on."""
        self._count, self._recoveries = 0, 0
        self._raised = False
        """The bus's threads have real-time priority."""
        self.states = node.publisher("sensor_msgs/msg/JointState", config.joint_states, STATE)
        self.reports = node.publisher(STATUS, GUARD_TOPIC, REPORT)
        self.health = node.publisher(DIAGNOSTICS, DIAGNOSTICS_TOPIC, qos.VIEWER)

    def listen(self) -> None:
        """Subscribe to commands; the parts have been started."""
        config = self.robot.driver
        assert isinstance(config, HeldArm)
        array = "std_msgs/msg/Float64MultiArray"
        self.command = self.node.subscribe(array, config.command, qos.COMMAND, self._on_command)
        self.gripper = self.node.subscribe(array, config.gripper_command, qos.COMMAND, self._on_gripper)
        self.node.subscribe(INT, RECOVER_TOPIC, qos.DEFAULT, self._on_recover)

    # ---- what differs ---------------------------------------------------------------------------------------------
    @abstractmethod
    def follow(self, q: tuple[float, ...], received: float) -> None:
        """Pass on a goal (J,), rad, that arrived at `received`, monotonic s."""

    @abstractmethod
    def grip(self, width: float) -> None:
        """Pass on the wanted distance between the fingers, m."""

    @abstractmethod
    def recover(self, number: int) -> None:
        """Pass on the operator's request to recover."""

    @abstractmethod
    def take(self, message: Any) -> None:
        """Take a message of a part other than a `Report`."""

    @abstractmethod
    def missing(self) -> str:
        """Return the name of a part whose state is not known yet; empty if all are."""

    @abstractmethod
    def preflight(self) -> str:
        """Return what was found before the first motion; raise UserError if the robot is not fit for it."""

    def remedy(self, reason: str) -> str:
        """Return what to do about the reason for which a part has ended, "; ..."; empty if the reason says it."""
        return ""

    @property
    @abstractmethod
    def state_time(self) -> float | None:
        """Return the time of the arm's newest state, monotonic s; None before the first."""

    @property
    def stalls(self) -> int:
        """Return the number of times that the arm's process stood still."""
        return 0

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """Return the values of the diagnosis, by name."""

    # ---- commands -------------------------------------------------------------------------------------------------
    def _on_command(self, sample: Stamped) -> None:
        if not self._raised:
            self._raised = True
            prefer_realtime_bus()
        q = self._numbers(sample, len(self.robot.joints))
        if q is not None:
            self.follow(q, sample.received)

    def _on_gripper(self, sample: Stamped) -> None:
        width = self._numbers(sample, 1)
        if width is not None and self.robot.gripper:
            self.grip(min(max(0.0, width[0]), self.robot.gripper.width))

    def _numbers(self, sample: Stamped, count: int) -> tuple[float, ...] | None:
        """Return the numbers of a command; None if it is refused."""
        numbers = tuple(float(x) for x in sample.msg.data)
        bad = "foreign writer" if self.foreign else "" if self._checked else "before the robot was checked"
        bad = bad or ("wrong number of values" if len(numbers) != count else "")
        bad = bad or ("not finite" if not all(map(math.isfinite, numbers)) else "")
        if bad:
            self.refused[bad] = self.refused.get(bad, 0) + 1
            return None
        return numbers

    def _on_recover(self, _: Stamped) -> None:
        self._recoveries += 1
        self.recover(self._recoveries)

    # ---- loop -----------------------------------------------------------------------------------------------------
    def run(self, say: Say = lambda _text: None) -> None:
        """Pass states and reports on until `close`; raise UserError if the robot is lost."""
        links = {part.link.fileno(): part for part in self.parts}
        try:
            self._wait_ready(links)
            if not self._closing.is_set():
                found, self._checked = self.preflight(), True
                say(f"{self.robot.name} at {self.where} is up: {found}; Ctrl-C ends it")
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
        end = time.monotonic() + self.CONNECT
        while what := self.missing():
            if self._closing.is_set():
                return
            self._take(links, 0.1)
            if time.monotonic() > end:
                raise UserError(f"no state of the {what} at {self.where} within {self.CONNECT:g} s: {self.SILENT}")

    def _take(self, links: dict[int, Part], timeout: float, say: Say = lambda _text: None) -> None:
        """Wait for messages of the parts, and pass them on."""
        for number in select.select(list(links), [], [], timeout)[0]:
            part = links[number]
            while (message := part.link.receive()) is not None:
                if isinstance(message, Report):
                    self._said = message
                else:
                    self.take(message)
            if part.link.closed:
                raise UserError(
                    f"the process of the {part.name} has ended; {self.robot.name} at {self.where}: {self._why(part)}"
                )
        last = self.state_time
        age = time.monotonic() - last if last is not None else 0.0
        silent = age > GONE and not self._said.latched  # which only a recovery ends
        report = Report(f"no state of the robot for {GONE:g} s", False) if silent else self._said
        if report != self.report:
            self._change(report, say)

    def _why(self, part: Part) -> str:
        """Return why the process of a part has ended, with a remedy."""
        if self._said.latched:
            return self._said.reason + self.remedy(self._said.reason)
        with suppress(subprocess.TimeoutExpired):
            part.process.wait(1.0)
        return f"{part.program} ended with status {part.process.poll()} and said nothing{self.remedy('')}"

    def _change(self, report: Report, say: Say) -> None:
        if report.reason:
            self.counts[report.reason] = self.counts.get(report.reason, 0) + 1
        say(report.reason or "following goals")
        self.report = report
        if self._checked:
            self.reports.publish(self._guard_report().message())

    def publish(self, message: Any) -> None:
        """Publish joint states, and the report with some of them."""
        if not self._checked:
            return
        self.states.publish(message)
        self._count += 1
        if self._count % max(1, round(self.robot.command_rate / GUARD_RATE)) == 0:
            self.reports.publish(self._guard_report().message())

    def _guard_report(self) -> GuardReport:
        return GuardReport(self.report.reason, self.report.latched, self.counts, self.stalls)

    def _foreign_writer(self) -> str:
        writers = self.command.writers()
        return f"{' and '.join(writers)} send on {self.command.topic}" if len(writers) > 1 else ""

    def _diagnosis(self) -> Any:
        level = ERROR if self.report.latched else WARN if self.foreign else OK
        values = self.values() | {"foreign writer": self.foreign}
        values |= {f"refused: {reason}": count for reason, count in self.refused.items()}
        return status(f"{self.node.full_name.lstrip('/')}: robot", level, self.report.reason, values)

    def close(self) -> None:
        """Make `run` return, with the arm at rest."""
        self._closing.set()

    def _end(self) -> None:
        for part in self.parts:
            part.process.terminate()
        for part in self.parts:
            try:
                part.process.wait(END)
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()
            part.link.close()

    @abstractmethod
    def summary(self) -> str:
        """Return a summary of the run in one line."""
