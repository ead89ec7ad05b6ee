"""Operator input as `sensor_msgs/msg/Joy` on `teleop/<robot>/joy`, and its reader on the robot's side."""

import logging
import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from real import clock
from real.bus import Node, QoS, Stamped, make
from real.bus.stamps import stamp
from real.teleop.pads import pad_of
from real.topics import EVENT_TOPIC, EVENTS, MARKS, TEXT

logger = logging.getLogger(__name__)
TYPE = "sensor_msgs/msg/Joy"
QOS = QoS(depth=10, blocking=0.02)
"""Reliable, with 10 samples, so that short presses arrive. A hanging reader blocks `publish` for at most 20 ms."""
AXES = ("x", "y", "z", "gripper", "roll", "pitch", "yaw")
"""Axes of our messages. A message may lack the last three axes and then has no rotation."""
BUTTONS = ("hold", "success", "failure", "stop", "reset")
PRESSES = BUTTONS[1:]
REPORTED = (*PRESSES, "rerecord")
"""Fields of `Operator` that are reported once."""

DEAD_BAND = 0.03
"""Fraction of full deflection below which an axis counts as 0."""
RELEASE = 0.05
"""Time after a release of the enable button before control returns to the policy, s; filters bounces of the button."""
TIMEOUT = 0.1
"""Time without a sample after which a device counts as lost, s."""
REPLACED = 1.0
"""Time without a sample after which the next sample may come from another device, s."""
LATEST = 500_000_000
"""Largest age of a resent sample relative to the newest sample, ns. An older stamp means that the writer's clock was
set."""


@dataclass(frozen=True)
class Operator:
    """Reading of the operator's input.

    Fields:
        held: enable button: the person has control. While it is released, motion and gripper are ignored.
        motion: x (forward), y (left), z (up) in the robot's base frame, -1 to 1 of the permitted speed; for a legged
            robot forward, left, left turn.
        rotation: about x, y, z of the base frame, right-handed, -1 to 1 of the permitted angular velocity; for arms
            whose controller rotates the tool.
        gripper: -1 close, 1 open; 0 keeps the last value, so that a takeover drops no object.
        success: the episode succeeded.
        failure: the episode failed.
        stop: emergency stop; latched until `reset`.
        reset: clear the stop, or begin the next episode.
        rerecord: discard the running episode, on the topic `episode_event`. Unlike `reset` it moves nothing by itself:
            it clears no stop and does not say that the objects are placed.
        lost: the device fell silent with the enable button held; set by `OperatorInput` only, with `held` False.

    Buttons of a device are levels: true while down, and in at least one reading per press. `OperatorInput` reports each
    press once, except that `stop` stays true while the button is down.
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
    rerecord: bool = False

    @property
    def discards(self) -> bool:
        """Return whether the running episode is to be discarded."""
        return self.reset or self.rerecord


RELEASED = Operator()


def joy_topic(robot: str) -> str:
    """Return the topic on which a robot's teleop devices publish at 20 to 50 Hz, relative to the namespace. Each robot
    has its own topic."""
    word = re.sub(r"\W", "_", robot, flags=re.ASCII)
    return f"teleop/{'_' * word[:1].isdigit()}{word}/joy"


def to_joy(operator: Operator) -> Any:
    """Build the Joy message of operator input, with axes and buttons in the order of `AXES` and `BUTTONS`."""
    buttons = (operator.held, *(getattr(operator, name) for name in PRESSES))
    return make(
        TYPE,
        header={"stamp": stamp()},
        axes=[*operator.motion, operator.gripper, *operator.rotation],
        buttons=[int(down) for down in buttons],
    )


def understood(msg: Any) -> bool:
    """Return whether a Joy message has our layout or the layout of a known joystick node."""
    ours = len(msg.axes) in (4, len(AXES)) and len(msg.buttons) == len(BUTTONS)
    return ours or pad_of(msg) is not None


def from_joy(msg: Any, legged: bool = False) -> Operator:
    """Convert a Joy message of ours or of a joystick node (`pad_of`) to operator input; never raises.

    A Joy with other numbers of axes or buttons gives `RELEASED`. With a non-finite axis `held` is False, but buttons
    count, so that a stop arrives. The enable button is held only at exactly 1, stop is pressed at any value except 0.
    `legged`: the robot has legs, and the right stick turns it; an arm's tool moves up and down with this stick.
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


def _without_noise(axes: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the axes; values inside the dead band become 0."""
    x, y, z = (value if abs(value) >= DEAD_BAND else 0.0 for value in axes)
    return x, y, z


class FirstInput:
    """Detector of an episode's first input: the enable button is held after a reading in which it was released. A key
    that is still held from the previous episode does not count."""

    def __init__(self) -> None:
        self.released = False

    def __call__(self, operator: Operator | None) -> bool:
        """Return whether this reading is the first input; `operator` is None without a reading."""
        held = operator is not None and operator.held
        self.released |= not held
        return held and self.released

    @property
    def phase(self) -> str:
        """Return the awaited event: "let go" for a release, then "waiting" for input."""
        return "waiting" if self.released else "let go"


class OperatorInput:
    """Reader of the newest operator input, in the robot's process. Thread-safe."""

    def __init__(self, node: Node | None, robot: str = "", legged: bool = False):
        """Subscribe to the robot's devices; without a node, only `receive` adds readings."""
        self._legged = legged
        self._topic = joy_topic(robot)
        self._lock = threading.Lock()
        self._latest: Operator | None = None
        self._received = -math.inf
        self._let_go = -math.inf
        """Time of the first reading without `held`, s."""
        self._pressed: set[str] = set()
        """Buttons and events since the last `read`."""
        self._seen: dict[tuple[int, bytes], None] = {}
        """Last samples, to ignore duplicates: most samples arrive at both subscriptions."""
        self._newest = 0
        """Time stamp of the newest sample by its writer's clock, ns."""
        self._understood = True
        self._rested: tuple[int, int] | None = None
        """Numbers of axes and buttons of the device whose sticks and triggers have been released once."""
        self._warned = False
        self._heard = -math.inf
        """Time of the last sample, s."""
        # Reliable for short presses, which are resent; best effort for publishers that offer no more.
        profiles = (QOS, replace(QOS, reliable=False))
        self.subscriptions = (
            [node.subscribe(TYPE, self._topic, profile, self._take) for profile in profiles] if node else []
        )
        self.events = node.subscribe(TEXT, EVENT_TOPIC, QOS, self._on_event) if node else None
        """Subscription of events, from any number of publishers; needs no device."""
        self._unknown: set[str] = set()
        self.on_mark: Callable[[str], None] = lambda _: None
        """Called with each event of `MARKS`, by the bus's thread."""

    @property
    def devices(self) -> int:
        """Return the number of publishers on the topic, which should be one."""
        return self.subscriptions[1].matched if self.subscriptions else 0

    def other_publishers(self) -> str:
        """If the topic has several publishers, describe them, with process and host if known; else return ""."""
        writers = self.subscriptions[1].writers(process=True) if self.subscriptions else []
        return f"{' and '.join(writers)} send on {self.subscriptions[1].topic}" if len(writers) > 1 else ""

    def _take(self, sample: Stamped) -> None:
        """Store a sample, unless it is a duplicate. Of a sample that arrives after a newer one, use only the button
        presses."""
        key = sample.source_ns, bytes(sample.raw)
        if key in self._seen:
            return
        self._seen[key] = None
        if len(self._seen) > 64:
            self._seen.pop(next(iter(self._seen)))
        operator = from_joy(sample.msg, self._legged)
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

    def _on_event(self, sample: Stamped) -> None:
        """Count an event like a press of its button."""
        word = str(sample.msg.data).strip()
        if word in EVENTS:
            with self._lock:
                self._pressed.add(EVENTS[word])
        elif word in MARKS:
            self.on_mark(word)
        elif word not in self._unknown and len(self._unknown) < 10:
            self._unknown.add(word)
            logger.warning("ignored %r on %s: send %s", word, EVENT_TOPIC, ", ".join((*EVENTS, *MARKS)))

    def _once_released(self, operator: Operator, sample: Stamped) -> Operator:
        """Return the input; `held` is False until the device's sticks and triggers have been released once."""
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
        """Store a reading that arrived at ``now``, s."""
        with self._lock:
            before = self._latest or RELEASED
            if before.held and not operator.held:
                # After a timeout control has returned already.
                self._let_go = now if now - self._received <= TIMEOUT else -math.inf
            self._pressed |= {n for n in PRESSES if getattr(operator, n) and not getattr(before, n)}
            self._latest, self._received = operator, now

    def read(self, now: float | None = None) -> Operator | None:
        """Return the operator's input; None if no sample arrived within the last `TIMEOUT` seconds.

        `lost` is set while a device is silent whose enable button was held. Motion within the dead band is 0. For
        `RELEASE` seconds after a release `held` stays True, with zero motion. Each press is reported exactly once, even
        if its device then falls silent.
        """
        now = clock.now() if now is None else now
        with self._lock:
            latest, pressed, self._pressed = self._latest, self._pressed, set()
            silent = latest is None or now - self._received > TIMEOUT
            lingers = now - self._let_go < RELEASE
        if latest is not None and latest.stop and not silent:
            pressed = pressed | {"stop"}
        presses: dict[str, Any] = {name: name in pressed for name in REPORTED}
        if latest is None or silent:
            lost = latest is not None and latest.held
            return Operator(lost=lost, **presses) if lost or pressed else None
        if not latest.held:
            return Operator(held=lingers, **presses)
        motion, rotation = _without_noise(latest.motion), _without_noise(latest.rotation)
        return replace(latest, motion=motion, rotation=rotation, **presses)

    def begin(self) -> None:
        """Begin an episode. This has no effect on a device in another process."""

    def close(self) -> None:
        """Close the subscriptions."""
        for subscription in filter(None, (*self.subscriptions, self.events)):
            subscription.close()
