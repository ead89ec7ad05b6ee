"""Operator input as `sensor_msgs/msg/Joy` on `teleop/joy`, and its reader on the robot."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from real.bus import Node, QoS, make

TOPIC = "teleop/joy"
"""Relative to the node's namespace; published at 20 to 50 Hz while a device is open."""
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


def from_joy(msg: Any) -> Operator:
    """Read the message; never raises.

    A Joy with other numbers of axes or buttons gives `RELEASED`. With a non-finite axis nothing is held, but buttons
    count: a stop must get through. The enable button is held only at exactly 1, the stop at anything but 0.
    """
    try:
        if len(msg.axes) not in (4, len(AXES)) or len(msg.buttons) != len(BUTTONS):
            return RELEASED
        axes = [float(value) for value in msg.axes]
        buttons = [int(value) for value in msg.buttons]
    except (AttributeError, TypeError, ValueError, OverflowError):
        return RELEASED
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


def stick_motion(
    left: tuple[float, float], right: tuple[float, float], tilts: bool
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return motion and rotation of an arm for two sticks (forward, left), each -1 to 1; the bindings of every gamepad.

    The left stick moves, or with `tilts` leans the tool's upper end the same way. The right stick moves up and down,
    and turns about the vertical, seen from above.
    """
    (forward, leftward), (up, turn) = left, right
    motion, lean = ((0.0, 0.0), (-leftward, forward)) if tilts else ((forward, leftward), (0.0, 0.0))
    return (*motion, up), (*lean, turn)


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

    def __init__(self, node: Node | None):
        """Without a node nothing is heard: readings come by `receive`."""
        self._lock = threading.Lock()
        self._latest: Operator | None = None
        self._received = -math.inf
        self._let_go = -math.inf  # time of the first reading without `held`
        self._pressed: set[str] = set()  # since the last `read`
        self._subscription = node and node.subscribe(
            TYPE, TOPIC, QOS, callback=lambda sample: self.receive(from_joy(sample.msg), sample.received)
        )

    @property
    def devices(self) -> int:
        """Return the number of publishers on the topic; it should be one."""
        return self._subscription.matched if self._subscription else 0

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
        if self._subscription:
            self._subscription.close()
