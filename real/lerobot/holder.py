"""Hold a robot of LeRobot, by the interpreter of LeRobot's environment: `python holder.py FD JSON`, from `node`.

Only the standard library and LeRobot are imported. Positions are in LeRobot's units, in the order of the settings'
`motors`, a gripper last: degrees, and for a gripper 0, closed, to 100, open. Times are of the monotonic clock, s.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import select
import signal
import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

SILENCE = "no goals"
LAST = 5.0
"""Longest wait to say the last words to a node that does not read, s."""
TRIES = 3
"""Number of times that the servos are addressed: LeRobot repeats no packet that was lost while it connects."""


class NotHeldError(Exception):
    """The robot cannot be held; the text says why, and what to do."""


class Link:
    """One end of a local socket that keeps the bounds of messages, which are JSON objects."""

    def __init__(self, end: socket.socket):
        self._end = end
        self.closed = False
        """The other process has ended."""

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, wait: float = 0.0, **message: Any) -> bool:
        """Send a message, and return whether it was: it is dropped if the other side has not read for a while.

        Args: `wait`: time to wait for that, s. A state need not wait, as the next one replaces it.
        """
        try:
            if wait:
                select.select([], [self._end], [], wait)
            self._end.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
            return True
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # the other process has ended, or this link is closed
            self.closed = True
            return False

    def receive(self) -> Any:
        """Return the next message; None if there is none, or if the other process has ended."""
        try:
            raw = self._end.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            raw = b""
        if not raw:
            self.closed = True
            return None
        return json.loads(raw)

    def close(self) -> None:
        self._end.close()


class Holder:
    """Loop that reads the servos, and moves them towards goals."""

    def __init__(self, robot: Any, settings: dict[str, Any], link: Link):
        self.robot, self.link = robot, link
        self.names: list[str] = settings["motors"]
        self.arm: int = settings["joints"]
        """Number of motors less the gripper's."""
        self.period = 1 / settings["rate"]
        self.step = [speed * self.period for speed in settings["speed"]]
        """Largest change of each motor's goal in a period."""
        self.lead: list[float] = settings["lead"]
        self.start, self.timeout = settings["start"], settings["goal_timeout"]
        self.patience, self.silence, self.dry_run = settings["patience"], settings["silence"], settings["dry_run"]
        self.ending = False
        self.fault = ""
        """Reason of a latched stop; empty if there is none."""
        self._goal: list[float] = []
        self._arrived = -math.inf
        """Arrival of the goal at the node."""
        self._grip: list[float] = []
        """Goal of the gripper, if there is one."""
        self._following = False
        self._reported: tuple[str, bool] | None = None
        self._measured: list[float] = []
        self._path: list[float] = []
        """Positions that are sent: they approach the goals at limited speed, at most `lead` ahead of the arm."""
        self._answered = self._free = time.monotonic()
        """Time of the last answer of all servos, and at which no joint was farther than `lead` behind."""
        self._cycles = self._errors = 0
        self._slowest = 0.0

    def run(self) -> None:
        """Hold the robot until the node or a signal ends the process."""
        due = time.monotonic()
        while not self.ending:
            self._cycle()
            due = max(due + self.period, time.monotonic() - self.period)  # what was missed is not made up for
            time.sleep(max(0.0, due - time.monotonic()))

    def _cycle(self) -> None:
        began = time.monotonic()
        self._receive()
        try:  # of the serial port, of a servo, of a packet: LeRobot, its SDKs and pyserial raise many kinds
            seen = self.robot.get_observation()
            self._measured = [float(seen[f"{name}.pos"]) for name in self.names]
            path = self._advance(time.monotonic())
            if not self.dry_run:
                self.robot.send_action({f"{name}.pos": x for name, x in zip(self.names, path, strict=True)})
            self._path = path  # not before: a cycle that fails must not make the next step longer
        except Exception as error:
            self._errors += 1
            if time.monotonic() - self._answered > self.silence:
                raise NotHeldError(f"no answer for {self.silence:g} s: {words(error)}") from error
            return
        now = self._answered = time.monotonic()
        self._cycles += 1
        self._slowest = max(0.99 * self._slowest, now - began)
        state = {"cycles": self._cycles, "errors": self._errors, "slowest": self._slowest}
        self.link.send(time=now, position=self._measured, **state)

    def _receive(self) -> None:
        while (message := self.link.receive()) is not None:
            if "goal" in message:
                self._goal, self._arrived = message["goal"], message["time"]
            elif "grip" in message:
                self._grip = [message["grip"]]
            elif "recover" in message:
                self.fault, self._goal, self._free = "", [], time.monotonic()
        self.ending |= self.link.closed

    def _advance(self, now: float) -> list[float]:
        """Return the path, moved by one period."""
        measured, path = self._measured, self._path or list(self._measured)
        self._following = self._may_follow(now)
        if self.dry_run:  # an imagined arm follows, from where the real one is
            path = path if self._following else list(measured)
            measured = path
        goal = (self._goal if self._following else path[: self.arm]) + (self._grip or path[self.arm :])
        if self.fault:
            goal = path
        path = [x + min(max(g - x, -s), s) for x, g, s in zip(path, goal, self.step, strict=True)]
        behind = [k for k in range(self.arm) if abs(path[k] - measured[k]) > self.lead[k]]
        if not behind:
            self._free = now
        for k in behind:
            path[k] = measured[k] + math.copysign(self.lead[k], path[k] - measured[k])
        if behind and now - self._free > self.patience and not self.fault:
            self.fault = f"{', '.join(self.names[k] for k in behind)}: blocked, overloaded or without power"
            path[: self.arm] = measured[: self.arm]
        return path

    def _may_follow(self, now: float) -> bool:
        """Return whether there is a goal to follow; report why, if there is none."""
        reason = self.fault
        if not reason and (not self._goal or now - self._arrived > self.timeout):
            reason = SILENCE
        if not reason and not self._following:
            away = max(abs(g - x) for g, x in zip(self._goal, self._measured[: self.arm], strict=True))
            if away > self.start:
                reason = f"the first goal is more than {self.start:.0f} degrees away from the arm"
        report = reason, bool(self.fault)
        if report != self._reported and self.link.send(reason=reason, latched=report[1]):
            self._reported = report  # a node that stood still gets it later
        return not reason


def words(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def import_robots(kind: str) -> Any:
    """Return LeRobot's package of robots, with the class named `kind` registered."""
    try:
        robots = importlib.import_module("lerobot.robots")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        # Old releases import torch for a type and two functions of the calibration's display, which are not used here.
        for name, needed in (("processor", ("RobotAction", "RobotObservation")),
                             ("utils.utils", ("enter_pressed", "move_cursor_up"))):  # fmt: skip
            module = types.ModuleType(f"lerobot.{name}")
            module.__dict__.update(dict.fromkeys(needed, dict))
            sys.modules[module.__name__] = module
        robots = importlib.import_module("lerobot.robots")
    for file in Path(robots.__path__[0]).glob("*/config*.py"):
        if f'"{kind}"' in file.read_text(encoding="utf-8"):
            importlib.import_module(f"lerobot.robots.{file.parent.name}")
    if kind not in robots.RobotConfig.get_known_choices():
        importlib.import_module("lerobot.utils.import_utils").register_third_party_plugins()
    return robots


def open_robot(settings: dict[str, Any]) -> Any:
    """Return the connected robot. Raise NotHeldError, if possible before its torque has been switched."""
    kind, fields = settings["type"], dict(settings["config"])
    if fields.get("calibration_dir"):
        fields["calibration_dir"] = Path(fields["calibration_dir"])
    try:
        robots = import_robots(kind)
    except ModuleNotFoundError as error:
        raise NotHeldError(
            f"{sys.executable} has no module {error.name}; install LeRobot there (pip install 'lerobot[feetech]'), or "
            "name its interpreter with --lerobot-python"
        ) from None
    try:
        config = robots.RobotConfig.get_choice_class(kind)(**fields)
    except KeyError:
        raise NotHeldError(f"LeRobot has no robot {kind!r}") from None
    except TypeError as error:
        raise NotHeldError(f"LeRobot's {kind}: {words(error)}") from None
    robot = robots.make_robot_from_config(config)
    if unknown := [name for name in settings["motors"] if f"{name}.pos" not in robot.action_features]:
        has = ", ".join(name.removesuffix(".pos") for name in robot.action_features)
        raise NotHeldError(f"LeRobot's {kind} has no motor {', '.join(unknown)}; it has {has}")
    named = fields | {"id": fields.get("id") or "NAME"}
    options = "".join(f" --robot.{key}={named[key]}" for key in ("port", "id", "calibration_dir") if named.get(key))
    remedy = NotHeldError(
        f"{kind} is not calibrated, or not as {robot.calibration_fpath} says; with your hand on the arm: "
        f"lerobot-calibrate --robot.type={kind}{options}"
    )
    if hasattr(robot, "bus") and not robot.calibration:
        known = sorted(path.stem for path in robot.calibration_fpath.parent.glob("*.json"))
        if not known:
            raise remedy
        missing = f"there is no calibration {fields['id']!r}" if fields.get("id") else "no --id is given"
        where = robot.calibration_fpath.parent
        raise NotHeldError(f"{missing}, and in {where} are those of {', '.join(known)}: name the arm's by --id")
    if settings["dry_run"] and not hasattr(robot, "bus"):
        raise NotHeldError(f"LeRobot's {kind} cannot be read without being switched; leave out --dry-run")
    for left in reversed(range(TRIES)):
        try:
            if not connect(robot, settings["dry_run"]):
                raise remedy
            return robot
        except NotHeldError:
            raise
        except Exception:
            if not left:
                raise
            with contextlib.suppress(Exception):
                robot.disconnect()


def connect(robot: Any, dry_run: bool) -> bool:
    """Connect a robot, which then holds where it is; return whether it is calibrated. If not, no torque is switched. In
    a dry run nothing is written."""
    if bus := getattr(robot, "bus", None):
        bus.connect()
        calibrated = bool(robot.is_calibrated)
        if calibrated and dry_run:
            return True
        if calibrated:  # the robot's `connect` switches torque off and on, which would bring it to its last goal
            bus.sync_write("Goal_Position", bus.sync_read("Present_Position"))
        bus.disconnect(disable_torque=False)
        if not calibrated:
            return False
    robot.connect(calibrate=False)
    return bool(robot.is_calibrated)


def main() -> int:
    """Hold the robot of the settings; return the exit status."""
    link, settings = Link(socket.socket(fileno=int(sys.argv[1]))), json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the node too
    robot = None
    try:
        robot = open_robot(settings)
        holder = Holder(robot, settings, link)

        def end(*_: object) -> None:
            holder.ending = True

        signal.signal(signal.SIGTERM, end)
        holder.run()
        robot.disconnect()
    except Exception as error:
        link.send(LAST, reason=words(error), latched=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
