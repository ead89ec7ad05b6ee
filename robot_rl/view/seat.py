"""The seat of the person who has control: one page of the console at a time is the robot's teleop device.

Each message of that page becomes one message of the device, so a page that freezes or closes is a device that falls
silent: during a correction the robot holds within `real.teleop.commands.TIMEOUT`, as with any other device.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from real.bus import Node, Publisher
from real.clock import now
from real.teleop.commands import QOS, RELEASED, TIMEOUT, TYPE, Operator, joy_topic, to_joy
from robot_rl.view.gizmo import Gizmo

GONE = 2.0
"""Silence of the page in the seat after which another page may take the seat, s."""
OLD = 0.3
"""Age of the newest news that a page had heard when it sent an input, above which the input is too late, s."""
Axis = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Six = tuple[Axis, Axis, Axis, Axis, Axis, Axis]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Input(_Message):
    """Input of the person's hands, sent at 30 Hz by the page in the seat."""

    type: Literal["input"]
    held: bool
    """The person has control."""
    motion: Six
    """x, y, z, roll, pitch, yaw, as of `Operator`."""
    gripper: Axis
    press: Annotated[tuple[Literal["success", "failure", "stop", "reset"], ...], Field(max_length=4)] = ()
    pointer: bool = False
    """A button or finger is down in the 3-D view: a drag of the gizmo goes on."""
    still: bool = False
    """Forget where the gizmo was dragged."""
    speed: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Share of the permitted speed."""
    seen: Annotated[int, Field(ge=0)] = 0
    """Count of the newest news that the page has heard."""


class Take(_Message):
    """Take or leave the seat."""

    type: Literal["seat"]
    take: bool


class Say(_Message):
    """Give the policy another instruction."""

    type: Literal["say"]
    text: Annotated[str, Field(min_length=1, max_length=500)]


class Event(_Message):
    """Publish an event; `terminate` is the emergency stop, which everybody who watches may press."""

    type: Literal["event"]
    word: Literal["terminate", "rerecord", "recovery", "correction"]


AnyMessage = Annotated[Input | Take | Say | Event, Field(discriminator="type")]
MESSAGE: TypeAdapter[Input | Take | Say | Event] = TypeAdapter(AnyMessage)
"""Validator of a page's messages; nothing else is accepted."""
_AT_REST = Input(type="input", held=False, motion=(0.0,) * 6, gripper=0.0)


class Seat:
    """Teleop device of the page that has the seat. Not thread-safe."""

    def __init__(
        self, node: Node, robot: str, gizmo: Gizmo | None, let_go: Callable[[], None] = lambda: None,
        paused: Callable[[], bool] = lambda: False, present: bool = False, clock: Callable[[], float] = now,
    ):  # fmt: skip
        """Args:
            gizmo: of an arm; None for a robot without a tool.
            let_go: called when the gizmo is let go of.
            paused: whether the robot waits for a device that was lost.
            present: be a device of the robot also while nobody sits.
        """
        self._node, self.gizmo, self._let_go, self._paused, self._now = node, gizmo, let_go, paused, clock
        self.holder = ""
        """Name of the page in the seat; empty if nobody sits."""
        self._present = present
        self._publisher: Publisher | None = None
        self._input, self._at = _AT_REST, -math.inf
        self._rested = False
        """Nothing was asked to move since the page took the seat or fell silent; until then nothing moves."""
        self.latched = self._taken = False
        """The robot waits since a page was lost: control is kept, at rest, until the page in the seat has taken it
        (`_taken`) and let go."""
        self.held = False
        """The person has control, as last published."""
        self._news: deque[float] = deque(maxlen=100)
        self.count = 0
        """Number of news so far."""
        self._devices = node.subscribe(TYPE, joy_topic(robot), QOS)
        if present:
            self._open()

    def _open(self) -> None:
        self._publisher = self._node.publisher(TYPE, self._devices.topic, QOS)

    def number_news(self) -> int:
        """Return the next count of news, by which the age of a page's input is told."""
        self.count += 1
        self._news.append(self._now())
        return self.count

    def take(self, page: str) -> str:
        """Give a page the seat; return why not, empty if it has it now."""
        if self.holder == page:
            return ""
        if self.holder and self._now() - self._at < GONE:
            return "another page has control"
        own = [self._node.full_name] if self._publisher else []
        if others := sorted(set(self._devices.writers()) - set(own)):
            return f"{' and '.join(others)} moves this robot already: end it first"
        waits = self._paused() or self.held
        self.leave(self.holder, lost=True)
        self.holder, self._input, self._at, self._rested = page, _AT_REST, self._now(), False
        self.latched, self._taken = waits, False
        if self._publisher is None:
            self._open()
        return ""

    def leave(self, page: str, lost: bool = False) -> None:
        """Take the seat from a page. A page that is `lost` while it has control hands nothing back: the robot holds."""
        if not page or page != self.holder:
            return
        publisher, self.holder = self._publisher, ""
        self.drop()
        if publisher is not None:
            if not (lost and self.held):
                publisher.publish(to_joy(RELEASED))
            if not self._present:
                self._publisher = None
                publisher.close()
        self.held = self.latched = False

    def receive(self, page: str, message: Input) -> None:
        """Publish the input of the page in the seat; that of others, and what comes too late, is ignored."""
        at, age = self._now(), self.count - message.seen
        if page != self.holder or not 0 <= age < len(self._news) or at - self._news[-1 - age] > OLD:
            return
        if at - self._at > TIMEOUT:  # the robot holds; a page that comes back must not go on moving it
            self._rested = False
            self.latched, self._taken = self.latched or self.held, False
            if self.gizmo:
                self.gizmo.goal = None  # what is dragged stays in the person's hand, at rest
        self._input, self._at = message, at
        if message.still:
            self.drop()
        if self.gizmo and not message.pointer:
            self.gizmo.dragged = False
        self._publish(message.press)

    def drag(self, phase: str, position: Any, wxyz: Any) -> None:
        """Take a phase of a drag of the gizmo, and publish at once if the page says that a finger is down."""
        if self.gizmo and self.holder and all(map(math.isfinite, (*position, *wxyz))):
            self.gizmo.drag(phase, position, wxyz)
            if self._input.pointer and self._now() - self._at < TIMEOUT:
                self._rested = True  # the hand is there
                self._publish()

    def drop(self) -> None:
        """Let go of the gizmo."""
        if self.gizmo and (self.gizmo.goal is not None or self.gizmo.dragged):
            self.gizmo.drop()
            self._let_go()

    def _publish(self, pressed: tuple[str, ...] = ()) -> None:
        page, gizmo = self._input, self.gizmo
        dragged = bool(gizmo and gizmo.dragged)
        wanted = page.held or dragged
        self.latched, self._taken = self.latched and (wanted or not self._taken), self._taken or wanted
        self.held = wanted or self.latched
        self._rested |= not (any(page.motion) or dragged)
        speed = page.speed if self._rested else 0.0
        motion, rotation = page.motion[:3], page.motion[3:]
        if not wanted or any(page.motion):
            self.drop()
        elif gizmo and gizmo.goal is not None:
            motion, rotation = gizmo.motion()
        x, y, z = (speed * value for value in motion)
        roll, pitch, yaw = (speed * value for value in rotation)
        presses = dict.fromkeys(pressed, True)
        if self._publisher is not None:
            operator = Operator(self.held, (x, y, z), page.gripper, **presses, rotation=(roll, pitch, yaw))
            self._publisher.publish(to_joy(operator))

    def close(self, lost: bool = False) -> None:
        """Leave the seat and unsubscribe; `lost` as of `leave`."""
        self.leave(self.holder, lost)
        if self._publisher is not None:
            self._publisher.close()
        self._devices.close()
