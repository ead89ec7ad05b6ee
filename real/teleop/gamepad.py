"""Gamepad as a teleop device."""

import time
from collections.abc import Callable

from real.teleop.commands import PRESSES, Operator
from real.teleop.joystick import AXIS, INITIAL, Identity, Joystick, identify
from real.teleop.layout import STICKS, TRIGGERS, USES, Layout, layout_of
from real.teleop.pads import AT_REST, stick_motion
from robot_rl.util.errors import UserError

SETTLE = 3.0
"""Longest time after opening for sticks and triggers to report their release, s. Some gamepads report nothing before
the first movement."""

HELP = """\
LB            hold: you have control; release: the policy continues
left stick    forward / back, left / right
right stick   up / down, turn left / right (where the policy turns the tool)
RB            hold it: the left stick leans the tool instead
RT / LT       close / open the gripper
A             the episode succeeded         Menu   reset
X             the episode failed            B      EMERGENCY STOP
On a PlayStation pad: L1, R1, R2 / L2, cross, square, Options, circle. Ctrl-C here ends.
"""
WALK_HELP = """\
LB            hold: you steer; release: back to the previous command source
left stick    forward / back, left / right
right stick   turn left / right
A             the episode succeeded         Menu   reset: it stands up and continues
X             the episode failed            B      EMERGENCY STOP: the robot is damped
On a PlayStation pad: L1, cross, square, Options, circle. Ctrl-C here ends.
"""


class Controls:
    """State of a layout's sticks, triggers and buttons, updated by a device's events. A button that is down at opening
    counts only from its next press; the emergency stop counts at once."""

    def __init__(self, layout: Layout, legged: bool = False):
        self.layout, self._legged = layout, legged
        self._named = {(source.kind, source.number): name for name, source in layout.items()}
        self._position: dict[str, float] = {}
        """Last reported positions of sticks and triggers."""
        self._down: set[str] = set()
        self._pressed: set[str] = set()
        """Buttons pressed since the last reading, including presses that have ended."""

    def take(self, kind: int, number: int, value: int) -> str:
        """Apply a device's event; return the name of the event's control, empty if the layout has none."""
        name = self._named.get((kind & ~INITIAL, number), "")
        if name in STICKS or name in TRIGGERS:
            self._position[name] = self.layout[name].position(value, name in TRIGGERS)
        elif name and not value:
            self._down.discard(USES[name])
        elif name and (not kind & INITIAL or USES[name] == "stop"):
            self._down.add(USES[name])
            self._pressed.add(USES[name])
        return name

    def moved(self) -> list[str]:
        """Return descriptions of the sticks and triggers that are not released or have not reported a position."""
        positions = self._position
        return [
            f"{source} ({name}) {f'stands at {positions[name]:+.2f}' if name in positions else 'reports nothing'}"
            for name, source in self.layout.items()
            if source.kind == AXIS and not abs(positions.get(name, 1.0)) <= AT_REST
        ]

    def operator(self) -> Operator:
        """Return the operator's input."""
        sticks = (_stick(-self._position.get(name, 0.0)) for name in ("lefty", "leftx", "righty", "rightx"))
        forward, left, up, turn = sticks
        motion, rotation = (forward, left, turn), (0.0, 0.0, 0.0)
        if not self._legged:
            motion, rotation = stick_motion((forward, left), (up, turn), "tilt" in self._down)
        down, self._pressed = self._down | self._pressed, set()
        opened, closed = (self._position.get(name, 0.0) for name in TRIGGERS)
        gripper = (opened if opened >= AT_REST else 0.0) - (closed if closed >= AT_REST else 0.0)
        presses = {name: name in down for name in PRESSES}
        return Operator("hold" in self._down, motion, gripper, **presses, rotation=rotation)


class Gamepad:
    """Gamepad at ``path`` or the first /dev/input/js*, with the layout in `map_file` or by the device's identity.

    Raises UserError unless all sticks and triggers report their release within `settle` seconds: an untouched axis at
    its end belongs to another layout and would move the robot.
    """

    def __init__(
        self, path: str = "", legged: bool = False, map_file: str = "", settle: float = SETTLE,
        identify: Callable[[int], Identity] = identify,
    ):  # fmt: skip
        self.help = WALK_HELP if legged else HELP
        self.device = Joystick(path, identify)
        try:
            self._controls = Controls(layout_of(self.device, map_file), legged)
            self._settle(settle)
        except UserError:
            self.close()
            raise

    def _settle(self, settle: float) -> None:
        ends = time.monotonic() + settle
        self._take()
        while moved := self._controls.moved():
            if time.monotonic() >= ends:
                raise UserError(
                    f"{self.device}: {', '.join(moved)}, and nobody should touch it now. Release it; move each stick "
                    f"and trigger once if the pad has just been plugged in; if that does not help, its layout is "
                    "another: see `robot-rl teleop gamepad --check`, and correct it with --map FILE"
                )
            self.device.wait(ends - time.monotonic())
            self._take()

    def _take(self) -> None:
        for event in self.device.events():
            self._controls.take(*event)

    def read(self) -> Operator:
        """Return the operator's input; raise UserError if the pad is gone."""
        self._take()
        return self._controls.operator()

    def close(self) -> None:
        """Close the device. Idempotent."""
        self.device.close()


def _stick(value: float) -> float:
    """Apply a dead zone to a stick's value, -1 to 1; the result is continuous at the edge of the zone."""
    beyond = max(abs(value) - AT_REST, 0.0) / (1.0 - AT_REST)
    return beyond if value > 0.0 else -beyond if beyond else 0.0
