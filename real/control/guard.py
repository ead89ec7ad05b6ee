"""Guard: the only process that writes a robot's motor commands. Without valid commands it damps the robot.

A motor follows its last command until it receives another. The policy's process can be killed, hang, or lose its
connection. The guard passes only checked commands on::

    deploy ── lowcmd_wanted ──> guard ── lowcmd, 500 Hz ──> motors
                                  ^────── lowstate ──────────┘

At the start and after damping, the robot may be in any posture. It stays damped until the policy's process stands it
up: set-points begin at the measured posture with low stiffness, which then grows slowly. Full stiffness at once is
refused. L2 and B of the robot's own remote always damp it, as does a hot motor. With a low battery the guard lays it
down. While one of the robot's own modes is active, which commands the motors too, the guard does not start.

The guard does not import torch, so that it needs little memory and starts in half a second.
"""

import json
import logging
import math
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from real import clock
from real.bus import Node, Stamped, encode, qos
from real.control.health import Health
from real.control.lying import LyingDown
from real.control.printer import BackgroundPrinter
from real.control.timing import STALL, Ticker, prefer_realtime, prefer_realtime_bus
from real.drivers.lowlevel import ARMING, GROWTH, GUARD_RATE, JUMP, REPORT, STATE_TIMEOUT, Motors
from real.drivers.motion_switcher import MotionSwitcher
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
from real.topics import DIAGNOSTICS, DIAGNOSTICS_TOPIC, GUARD_TOPIC, STATUS, GuardReport, diagnostics
from robot_rl.interface.driver import UnitreeLowLevel
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
COMMAND_TIMEOUT = 0.05
"""Maximum age of a command that is passed on, s."""
WATCH = 0.5
"""Interval between checks for other publishers on the guard's topics, s."""
DIAGNOSE = 1.0
"""Interval between messages on `/diagnostics` without a change, s."""
DRAIN = 4.0
"""Maximum time that `close` waits for the policy's process to stop sending, s."""
SILENCE, STALE_STATE = QUIET = ("silence", "stale state")
"""Reasons for damping other than a refused command: no command or no state arrives."""
GREW, REMOTE = "stiffness grew too fast", "L2 and B of the remote"
_L2, _B = (2, 0x20), (3, 0x02)
"""Byte index and bit mask of the remote's buttons L2 and B in `wireless_remote`."""


class ReceivedCommand(NamedTuple):
    """Newest command that the guard received, and the result of its check."""

    raw: bytes = b""
    bad: str = ""
    """Reason for refusing the command; empty if the command is valid."""
    command: np.ndarray | None = None
    received: float = -float("inf")
    """Arrival of the command, s."""


class CommandCheck:
    """Decide in each tick to pass the newest command on, or to damp."""

    def __init__(self, motors: Motors, config: UnitreeLowLevel):
        self.motors, self.health = motors, Health(motors, config)
        self.damping = SILENCE
        """Reason for the present damping; empty while commands are passed on."""
        self.latched = True
        """Damping ends only with a command that begins standing up."""
        self.foreign_publisher = ""
        """Other publisher of commands or of the robot's state, or active mode of the robot; empty if none."""
        self.alive = -float("inf")
        """Arrival of the robot's last new state, s."""
        self.position, self.remote = np.full(motors.count, np.nan), False
        """Motor positions (M,), rad, in the newest state; True if L2 and B of the remote are pressed in it."""
        self._soft = -float("inf")
        """Time of the last tick with a stiffness of at most `ARMING` or latched damping, s."""

    def reason(self, now: float, newest: ReceivedCommand) -> str:
        """Return the reason to damp in this tick; empty if the newest command may be passed on."""
        reason = newest.bad
        if now - newest.received > COMMAND_TIMEOUT:
            reason = SILENCE
        reason = self.health.hot or self.health.low or reason
        if now - self.alive > STATE_TIMEOUT:
            reason = STALE_STATE
        if self.foreign_publisher:
            reason = self.foreign_publisher
        if self.remote:
            reason = REMOTE
        if not reason and newest.command is not None:
            stiffness_scale = self.motors.stiffness_scale(newest.command)
            self.latched = self.latched and not self.motors.arms(newest.command, self.position)
            if self.latched or stiffness_scale <= ARMING:
                self._soft = now
            elif stiffness_scale > JUMP + GROWTH * (now - self._soft):
                reason = GREW
        self.latched |= bool(reason)
        return reason or (self.damping if self.latched else "")


class Guard(CommandCheck):
    """Send motor commands at the robot's command rate from `run()` until `close()`; damp first and last."""

    def __init__(self, node: Node, robot: RobotSpec, timeout: float = 10.0, release: bool = False):
        if not isinstance(robot.driver, UnitreeLowLevel):
            raise UserError(
                f"robot {robot.name!r} needs no guard: only motors that obey LowCmd do; see `robot-rl robots`"
            )
        super().__init__(Motors(robot), robot.driver)
        self.robot, self.lying = robot, LyingDown(self.motors, robot)
        self._command, self._state = layout(LOW_COMMAND), layout(LOW_STATE)
        self._damp = self._command.seal(self.motors.damp())
        self.events: dict[str, int] = {}
        """Number of times that damping began, by reason."""
        self.stalls = 0
        """Number of ticks that came more than `STALL` s late."""
        self.timing: dict[str, Any] = {}
        self._tick = -1
        """Tick counter of the robot's newest state, ms."""
        self.trunk = np.zeros(4)
        """Orientation of the trunk in the newest state, (4,) w x y z."""
        self._warning, self._said = "", {""}
        """Warning of the last tick, and all that were printed."""
        self._newest = ReceivedCommand()
        self._raised = False
        """The bus's threads have real-time priority."""
        self._closing: float | None = None
        self._hurry = threading.Event()
        self._name = f"{node.full_name.lstrip('/')}: guard"
        self.reports = node.publisher(STATUS, GUARD_TOPIC, REPORT)
        self.viewers = node.publisher(DIAGNOSTICS, DIAGNOSTICS_TOPIC, qos.VIEWER)
        self.output = node.publisher(LOW_COMMAND, robot.driver.low_command, qos.COMMAND)
        self.state = node.subscribe(LOW_STATE, robot.driver.low_state, qos.SENSOR, self._on_state)
        self.commands = node.subscribe(LOW_COMMAND, robot.driver.wanted_command, qos.COMMAND, self._on_command)
        self.switcher = MotionSwitcher(node, robot.driver.motion_switcher)
        self._wait_ready(node, timeout)
        self.switcher.take_over(release)
        if others := self.output.other_writers():
            raise UserError(
                f"{', '.join(others)} already sends motor commands on {self.output.topic}; stop it first: "
                "two writers make a robot shake"
            )
        self._count, self._last_report = 0, self._report()
        self.reports.publish(self._last_report)

    def _wait_ready(self, node: Node, timeout: float) -> None:
        """Wait for the robot's first state; raise UserError if none arrives."""
        clock.wait(lambda: self._tick >= 0, timeout)
        if self._tick < 0:
            raise UserError(
                f"no state of {self.robot.name} on {self.state.topic} within {timeout:g} s; is the robot, or "
                f"`robot-rl twin {self.robot.name}`, running on this domain? {'; '.join(node.incompatible())}".rstrip()
            )

    def _on_state(self, sample: Stamped) -> None:
        if not self._raised:
            self._raised = True
            prefer_realtime_bus()
        state = self._state.open(sample.raw)
        if state is not None and state["tick"] != self._tick:  # a robot that hangs may repeat its state
            self._tick, self.alive = int(state["tick"]), sample.received
            self.position = state["motor_state"]["q"][: self.motors.count]
            self.trunk = state["imu_state"]["quaternion"]
            self.health.look(state, sample.received)
            self.remote = all(state["wireless_remote"][byte] & bit for byte, bit in (_L2, _B))

    def _on_command(self, sample: Stamped) -> None:
        if sample.raw == self._newest.raw:  # most commands are repeated; check each once
            self._newest = self._newest._replace(received=sample.received)
            return
        command = self._command.open(sample.raw)
        bad = "damaged command" if command is None else self.motors.refusal(command)
        self._newest = ReceivedCommand(bytes(sample.raw), bad, command, sample.received)

    def run(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """In every tick until `close`, pass the newest command on or damp. Always damp at the end."""
        prefer_realtime(42)
        clock.join()
        ticker = Ticker(1 / self.robot.command_rate)
        printer = BackgroundPrinter(say)
        try:
            clock.run(ticker, partial(self._step, printer))
        finally:
            self._end(ticker)
            clock.leave()
            printer.close()
        self.timing = ticker.timing.summary()

    def _step(self, say: Callable[[str], None], late: float) -> bool:
        """Pass the newest command on, or damp, `late` s late; return whether another tick follows."""
        if late > STALL:
            self.stalls += 1
            say(f"stood still for {1000 * late:.0f} ms")
        if self._count % round(self.robot.command_rate * WATCH) == 0:
            self.foreign_publisher = self._find_intruder()
        newest = self._newest
        before, reason = (self.damping, self.latched), self.reason(clock.now(), newest)
        self.output.publish(self._answer(reason, newest) if reason else newest.raw)
        # Report the reason of a new damping, and the first refusal after a silence.
        if bool(reason) != bool(self.damping) or (self.damping in QUIET and reason not in QUIET):
            if reason:
                self.events[reason] = self.events.get(reason, 0) + 1
            say(f"damping: {reason}" if reason else "passing commands on")
            self.damping = reason
        warning, self._warning = self._warning, self.health.warning
        if self._warning not in self._said:  # each text once: a reading may flicker
            self._said.add(self._warning)
            say(f"warning: {self._warning}")
        changed = (*before, warning) != (self.damping, self.latched, self._warning)
        if changed:
            self._last_report = self._report()
        if changed or self._count % round(self.robot.command_rate / GUARD_RATE) == 0:
            self.reports.publish(self._last_report)
        if changed or self._count % round(self.robot.command_rate * DIAGNOSE) == 1:  # not in a tick with other checks
            self.viewers.publish(diagnostics(self._reported().message(self._name, **self.health.values)))
        self._count += 1
        return not self._over()

    def _answer(self, reason: str, newest: ReceivedCommand) -> bytes:
        """Return the command in place of the newest one: damping, or with a low battery those of lying down."""
        if reason != self.health.low or not self._is_level():
            self.lying.over = True
            return self._damp
        if not self.damping and not newest.bad and newest.command is not None:
            self.lying.begin(newest.command, clock.now())
        return self._damp if self.lying.over else self._command.seal(self.lying.command(clock.now()))

    def _is_level(self) -> bool:
        """Return whether the trunk is tilted by less than 45 degrees, and its orientation known."""
        w, x, y, z = self.trunk.tolist()
        norm = w * w + x * x + y * y + z * z
        return norm > 0.5 and 1 - 2 * (x * x + y * y) / norm > math.sqrt(0.5)

    def _end(self, ticker: Ticker) -> None:
        """Send damping three times, since a message may be lost; continue if an attempt fails."""
        for _ in range(3):
            try:
                self.output.publish(self._damp)
                ticker.wait()
            except Exception:
                logger.exception("could not damp the robot at the end")

    def _find_intruder(self) -> str:
        """Return a text that names an active mode of the robot, another publisher of motor commands, or two publishers
        of policy commands or of the robot's state; empty if there are none."""
        self.switcher.look()
        if self.switcher.mode:
            return f"mode {self.switcher.mode!r} of the robot is active"
        if others := self.output.other_writers(process=True):
            return f"{' and '.join(others)} sends motor commands on {self.output.topic} too"
        for topic in (self.commands, self.state):
            if len(topic.writers()) > 1:
                return f"{' and '.join(topic.writers(process=True))} send on {topic.topic}"
        return ""

    def _reported(self) -> GuardReport:
        return GuardReport(self.damping, self.latched, self.events, self.stalls, self._warning)

    def _report(self) -> bytes:
        return bytes(encode(self._reported().message(), STATUS))

    def _over(self) -> bool:
        """Return whether `run` must end: after `close`, if commands have stopped or `DRAIN` s have passed, or after a
        second `close`."""
        if self._closing is None:
            return False
        damped = bool(self.damping) and self.lying.over
        return self._hurry.is_set() or damped or clock.now() - self._closing > DRAIN

    def close(self) -> None:
        """Make `run` return once the policy's process, which first lays the robot down, is silent. A second call makes
        `run` return at once."""
        if self._closing is not None:
            self._hurry.set()
        self._closing = self._closing or clock.now()

    def summary(self) -> str:
        """Return a summary of the run in one line: ticks, lateness, dampings by reason."""
        late = self.timing["lateness_us"]
        return (
            f"{self.timing['ticks']} ticks, {self.timing['missed']} missed, lateness p50 {late['p50']:.0f} us, "
            f"p99 {late['p99']:.0f} us, max {late['max']:.0f} us; damped: {json.dumps(self.events)}"
        )
