"""Operator input as `sensor_msgs/msg/Joy` on `teleop/<robot>/joy`, and its reader on the robot."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from real.bus import Node, QoS, Stamped, make
from real.teleop.pads import pad_of

logger = logging.getLogger(__name__)
TYPE = "sensor_msgs/msg/Joy"
QOS = QoS(depth=10, blocking=0.02)
"""Reliable with depth 10, so that a short press arrives; a hanging reader costs 20 ms at most."""
AXES = ("x", "y", "z", "gripper", "roll", "pitch", "yaw")
"""The last three may be missing: no rotation."""
BUTTONS = ("hold", "success", "failure", "stop", "reset")
PRESSES = BUTTONS[1:]

DEAD_BAND = 0.03  # of full deflection
RELEASE = 0.05  # s without `held` before control goes back, to ignore flicker of the button
TIMEOUT = 0.1  # s
REPLACED = 1.0  # s of silence after which another device may speak
LATEST = 500_000_000  # ns within which an older sample was resent; beyond, its writer's clock was set


@dataclass(frozen=True)
class Operator:
    """One reading of the operator's input.

    Fields:
        held: the enable button: the person has control. Motion and gripper count only with it.
        motion: -1 to 1 of the permitted speed along x (forward), y (left), z (up) of the robot's base frame; of a
            walking robot forward, left, and turning left.
        rotation: -1 to 1 of the permitted turning speed about x, y, z of the base frame, right-handed, of an arm whose
            controller turns its tool.
        gripper: -1 close, 1 open; 0 keeps the last value, so that a takeover drops nothing.
        success: the episode succeeded.
        failure: the episode failed.
        stop: emergency stop; the robot stays stopped until `reset`.
        reset: clear the stop, or begin the next episode.
        lost: the device fell silent with the button held; set by `OperatorInput` only, with nothing held.

    From a device the buttons are levels, true while down and in at least one reading. From `OperatorInput` each press
    is reported once, but `stop` while it is down.
    """

    held: bool = False
    motion: tuple[float, float, float] = (0.0, 0.0, 0.0)
    gripper: float = 0.0
    success: bool = False
    failure: bool = False
    stop: bool = False
    reset: bool = False
    lost: bool = False
    rotation: tuple[float, float, float] = (0.0, 0.0, 0.0)


RELEASED = Operator()


def joy_topic(robot: str) -> str:
    """Return the topic of the devices of the robot with this name, relative to the namespace: one for each robot, so
    that none obeys another's device. Published at 20 to 50 Hz while a device is open."""
    word = re.sub(r"\W", "_", robot, flags=re.ASCII)
    return f"teleop/{'_' * word[:1].isdigit()}{word}/joy"


def to_joy(operator: Operator) -> Any:
    """Build the message: `AXES` and `BUTTONS` in their order."""
    sec, nanosec = divmod(time.time_ns(), 1_000_000_000)
    buttons = (operator.held, *(getattr(operator, name) for name in PRESSES))
    return make(
        TYPE,
        header={"stamp": {"sec": sec, "nanosec": nanosec}},
        axes=[*operator.motion, operator.gripper, *operator.rotation],
        buttons=[int(down) for down in buttons],
    )


def understood(msg: Any) -> bool:
    """Return whether a Joy is one of ours, or of a known joystick node."""
    ours = len(msg.axes) in (4, len(AXES)) and len(msg.buttons) == len(BUTTONS)
    return ours or pad_of(msg) is not None


def from_joy(msg: Any, legged: bool = False) -> Operator:
    """Read the message, ours or that of a gamepad by `joy_node`; never raises.

    A Joy with other numbers of axes or buttons gives `RELEASED`. With a non-finite axis nothing is held, but buttons
    count: a stop must get through. The enable button is held only at exactly 1, the stop at anything but 0.
    `legged`: the right stick turns a walking robot, where it lifts an arm.
    """
    try:
        if not understood(msg):
            return RELEASED
        axes = [float(value) for value in msg.axes]
        buttons = [int(value) for value in msg.buttons]
    except (AttributeError, TypeError, ValueError, OverflowError):
        return RELEASED
    if (pad := pad_of(msg)) is not None:
        axes, buttons = pad.as_ours(axes, buttons, legged)
    hold, success, failure, stop, reset = buttons
    finite = all(math.isfinite(value) for value in axes)
    axes = [min(max(value, -1.0), 1.0) for value in axes] if finite else []
    x, y, z, gripper, roll, pitch, yaw = axes + [0.0] * (len(AXES) - len(axes))
    presses = {"success": success == 1, "failure": failure == 1, "stop": stop != 0, "reset": reset == 1}
    return Operator(finite and hold == 1, (x, y, z), gripper, **presses, rotation=(roll, pitch, yaw))


def _calm(axes: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the axes with 0 inside the dead-band."""
    x, y, z = (value if abs(value) >= DEAD_BAND else 0.0 for value in axes)
    return x, y, z


def _told(pressed: set[str]) -> dict[str, Any]:
    return {name: name in pressed for name in PRESSES}


class FirstInput:
    """Tell when the person takes control anew: held input after a reading without it.

    Whoever still holds a key from the episode before has not seen the next one.
    """

    def __init__(self) -> None:
        self.released = False

    def __call__(self, operator: Operator | None) -> bool:
        """Return whether this reading is the first input."""
        held = operator is not None and operator.held
        self.released |= not held
        return held and self.released

    @property
    def phase(self) -> str:
        """Return what is waited for: "let go" of what is held, then the input: "waiting"."""
        return "waiting" if self.released else "let go"


class OperatorInput:
    """The receiving side, in the robot's process: the newest reading, if it is fresh. Thread-safe."""

    def __init__(self, node: Node | None, robot: str = "", legged: bool = False):
        """Hear the devices of the robot with this name; without a node none, and readings come by `receive`."""
        self._walks = legged
        self._topic = joy_topic(robot)
        self._lock = threading.Lock()
        self._latest: Operator | None = None
        self._received = -math.inf
        self._let_go = -math.inf  # time of the first reading without `held`
        self._pressed: set[str] = set()  # since the last `read`
        self._seen: dict[tuple[int, bytes], None] = {}
        """The last samples: most arrive at both subscriptions."""
        self._newest = 0
        """Time of the newest sample by its writer's clock, ns."""
        self._understood = True
        self._rested: tuple[int, int] | None = None
        """Size of the messages of a device whose sticks and triggers have been seen released."""
        self._warned = False
        self._heard = -math.inf
        """Time of the last sample, monotonic s."""
        # A short press is resent until it arrives, and a best-effort publisher's stop counts too.
        profiles = (QOS, replace(QOS, reliable=False))
        self._subscriptions = (
            [node.subscribe(TYPE, self._topic, profile, self._take) for profile in profiles] if node else []
        )

    @property
    def devices(self) -> int:
        """Return the number of publishers on the topic; it should be one."""
        return self._subscriptions[1].matched if self._subscriptions else 0

    def other_publishers(self) -> str:
        """Return the nodes of several devices, with process and host as far as known; empty if there is one."""
        if not self._subscriptions:
            return ""
        topic = self._subscriptions[1]
        writers = topic.writers(process=True)
        return f"{' and '.join(writers)} send on {topic.topic}" if len(writers) > 1 else ""

    def _take(self, sample: Stamped) -> None:
        """Take in a sample once. Of one that was resent and comes after a newer one, only presses count."""
        key = sample.source_ns, bytes(sample.raw)
        if key in self._seen:
            return
        self._seen[key] = None
        if len(self._seen) > 64:
            self._seen.pop(next(iter(self._seen)))
        operator = from_joy(sample.msg, self._walks)
        if understood(sample.msg) != self._understood:
            self._understood = not self._understood
            if not self._understood:
                logger.warning(
                    "ignored a Joy of %d axes and %d buttons on %s: use `robot-rl teleop gamepad`, or joy's "
                    "game_controller_node, whose layout is the same for every pad",
                    len(sample.msg.axes), len(sample.msg.buttons), self._topic,
                )  # fmt: skip
        operator = self._once_released(operator, sample)
        if 0 < self._newest - sample.source_ns < LATEST:
            with self._lock:
                self._pressed |= {name for name in PRESSES if getattr(operator, name)}
            return
        self._newest = sample.source_ns
        self.receive(operator, sample.received)

    def _once_released(self, operator: Operator, sample: Stamped) -> Operator:
        """Return the input without `held` until the device has been seen with nothing touched."""
        size = len(sample.msg.axes), len(sample.msg.buttons)
        if size != self._rested or sample.received - self._heard > REPLACED:
            pad = pad_of(sample.msg)
            away = pad.unreleased(sample.msg.axes) if pad else ""
            if away and operator.held and not self._warned:
                logger.warning(
                    "no control by the Joy on %s until its sticks and triggers are released: %s. If nobody touches "
                    "it, it is of another layout: use `robot-rl teleop gamepad`, or joy's game_controller_node",
                    self._topic, away,
                )  # fmt: skip
            self._warned = bool(away) and (self._warned or operator.held)
            self._rested = None if away else size
            operator = replace(operator, held=operator.held and not away)
        self._heard = sample.received
        return operator

    def receive(self, operator: Operator, now: float) -> None:
        """Store a reading that arrived at ``now``, in seconds of the monotonic clock."""
        with self._lock:
            before = self._latest or RELEASED
            if before.held and not operator.held:
                # After a silence control has gone back already.
                self._let_go = now if now - self._received <= TIMEOUT else -math.inf
            self._pressed |= {n for n in PRESSES if getattr(operator, n) and not getattr(before, n)}
            self._latest, self._received = operator, now

    def read(self, now: float | None = None) -> Operator | None:
        """Return the operator's input, or None if nothing arrived in time.

        A device that fell silent with the enable button held is `lost` instead, until it returns. Motion within the
        dead-band is 0. For 50 ms after release `held` stays, without motion. A press is reported exactly once, even if
        its device then falls silent.
        """
        now = time.monotonic() if now is None else now
        with self._lock:
            latest, pressed, self._pressed = self._latest, self._pressed, set()
            gone = latest is None or now - self._received > TIMEOUT
            lingers = now - self._let_go < RELEASE
        if latest is None or gone:
            lost = latest is not None and latest.held
            return Operator(lost=lost, **_told(pressed)) if lost or pressed else None
        told = _told(pressed | {"stop"} if latest.stop else pressed)
        if not latest.held:
            return Operator(held=lingers, **told)
        return replace(latest, motion=_calm(latest.motion), rotation=_calm(latest.rotation), **told)

    def begin(self) -> None:
        """Begin an episode; a device behind a topic is not told."""

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            subscription.close()
