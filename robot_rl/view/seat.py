"""The seat of the person who has control: one page of the console at a time is the robot's teleop device.

Each message of that page becomes one message of the device, so a page that freezes or closes is a device that falls
silent: the robot holds within `real.teleop.commands.TIMEOUT`, as with any other device.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from real.bus import Node, Publisher
from real.clock import now
from real.teleop.commands import QOS, RELEASED, TIMEOUT, TYPE, Operator, joy_topic, to_joy
from robot_rl.view.gizmo import Gizmo

GONE = 2.0
"""Silence of the page in the seat after which another page may take the seat, s."""
Axis = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
Six = tuple[Axis, Axis, Axis, Axis, Axis, Axis]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Input(_Message):
    """What the person's hands do now; sent at 30 Hz by the page in the seat."""

    type: Literal["input"]
    held: bool
    """The person has control."""
    motion: Six
    """x, y, z, roll, pitch, yaw, as of `Operator`."""
    gripper: Axis
    press: Annotated[tuple[Literal["success", "failure", "stop", "reset"], ...], Field(max_length=4)] = ()
    pointer: bool = False
    """A button or finger is down in the 3-D view: a drag of the gizmo goes on."""
    speed: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Share of the permitted speed."""


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
    """Teleop device of the page that has the seat. Not thread-safe, except `gizmo`."""

    def __init__(
        self, node: Node, robot: str, gizmo: Gizmo | None, let_go: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = now,
    ):  # fmt: skip
        """`gizmo`: of an arm; None for a robot without a tool. `let_go` is called when the gizmo is let go of."""
        self._node, self.gizmo, self._let_go, self._now = node, gizmo, let_go, clock
        self.holder = ""
        """Name of the page in the seat; empty if nobody sits."""
        self._publisher: Publisher | None = None
        self._input, self._at = _AT_REST, -math.inf
        self._rested = False
        """Nothing was asked to move since the page took the seat or fell silent; until then nothing moves."""
        self.held = False
        """The person has control, as last published."""
        self._devices = node.subscribe(TYPE, joy_topic(robot), QOS)

    def take(self, page: str) -> str:
        """Give a page the seat; return why not, empty if it has it now."""
        if self.holder == page:
            return ""
        if self.holder and self._now() - self._at < GONE:
            return "another page has control"
        own = [self._node.full_name] if self._publisher else []
        if others := sorted(set(self._devices.writers()) - set(own)):
            return f"{' and '.join(others)} moves this robot already: end it first"
        self.leave(self.holder)
        self.holder, self._input, self._at, self._rested = page, _AT_REST, self._now(), False
        self._publisher = self._node.publisher(TYPE, self._devices.topic, QOS)
        return ""

    def leave(self, page: str, lost: bool = False) -> None:
        """Take the seat from a page. A page that is `lost` while it has control hands nothing back: the robot holds."""
        if not page or page != self.holder:
            return
        publisher, self._publisher, self.holder = self._publisher, None, ""
        self._drop()
        if publisher is not None:
            if not (lost and self.held):
                publisher.publish(to_joy(RELEASED))
            publisher.close()
        self.held = False

    def receive(self, page: str, message: Input) -> None:
        """Publish the input of the page in the seat; that of others is ignored."""
        if page != self.holder:
            return
        at = self._now()
        if at - self._at > TIMEOUT:  # the robot holds; a page that comes back must not go on moving it
            self._rested = False
            if self.gizmo:
                self.gizmo.goal = None  # what is dragged stays in the person's hand, at rest
        self._input, self._at = message, at
        self._publish(message.press)

    def drag(self, phase: str, position: Any, wxyz: Any) -> None:
        """Take a phase of a drag of the gizmo, and publish at once, unless the page itself has fallen silent."""
        if self.gizmo and self.holder:
            self.gizmo.drag(phase, position, wxyz)
            if self._now() - self._at < TIMEOUT:
                self._rested = True  # the hand is there
                self._publish()

    def _drop(self) -> None:
        if self.gizmo and self.gizmo.goal is not None:
            self.gizmo.drop()
            self._let_go()

    def _publish(self, pressed: tuple[str, ...] = ()) -> None:
        page, gizmo = self._input, self.gizmo
        dragged = page.pointer and bool(gizmo and gizmo.dragged)
        self.held = page.held or dragged
        self._rested |= not (any(page.motion) or dragged)
        speed = page.speed if self._rested else 0.0
        motion, rotation = page.motion[:3], page.motion[3:]
        if not self.held or any(page.motion):
            self._drop()
        elif gizmo and gizmo.goal is not None:
            motion, rotation = gizmo.motion()
        x, y, z = (speed * value for value in motion)
        roll, pitch, yaw = (speed * value for value in rotation)
        presses = dict.fromkeys(pressed, True)
        if self._publisher is not None:
            operator = Operator(self.held, (x, y, z), page.gripper, **presses, rotation=(roll, pitch, yaw))
            self._publisher.publish(to_joy(operator))

    def close(self) -> None:
        """Leave the seat and unsubscribe."""
        self.leave(self.holder)
        self._devices.close()
