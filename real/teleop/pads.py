"""Gamepads and SpaceMice that ROS's joystick nodes publish, and the stick bindings of all gamepads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

AT_REST = 0.08
"""Largest distance of a released stick or trigger from its rest position, as a fraction of full deflection."""


@dataclass(frozen=True)
class Pad:
    """Indices of a pad's axes and buttons in a joystick node's messages."""

    sticks: tuple[int, int, int, int]
    """Axes: left stick forward, left stick left, right stick forward, right stick left; positive in this direction."""
    triggers: tuple[int, int]
    """Axes of LT and RT; a fully pulled trigger has the value -1."""
    rest: float
    """Value of a released trigger."""
    buttons: tuple[int, int, int, int, int, int]
    """Buttons LB, A, X, B, Menu (in the order of `BUTTONS`), and RB."""

    def unreleased(self, axes: Sequence[float]) -> str:
        """Describe the axes that are not at their rest position; empty if all axes are."""
        rest = dict.fromkeys(self.sticks, 0.0) | dict.fromkeys(self.triggers, self.rest)
        away = [k for k in sorted(rest) if not abs(axes[k] - rest[k]) <= AT_REST]
        return ", ".join(f"axis {k} is {axes[k]:g}, released {rest[k]:g}" for k in away)

    def as_ours(self, axes: list[float], buttons: list[int], legged: bool) -> tuple[list[float], list[int]]:
        """Convert a joystick node's axes and buttons to those of our messages, in the order of `AXES` and `BUTTONS`."""
        forward, left, up, turn = (axes[k] for k in self.sticks)
        motion, rotation = (forward, left, turn), (0.0, 0.0, 0.0)
        *ours, tilts = (buttons[k] for k in self.buttons)
        if not legged:
            motion, rotation = stick_motion((forward, left), (up, turn), tilts == 1)
        # joy_linux reports 0 before a trigger's first movement.
        opened, closed = ((self.rest - axes[k]) / (1.0 + self.rest) if axes[k] else 0.0 for k in self.triggers)
        return [*motion, opened - closed, *rotation], ours


class Cap:
    """SpaceMouse in the messages of ROS's spacenav_node, whose axes are x, y, z and rotations about them, as ours. The
    left button closes the gripper while it is down, the right one opens it; both are the emergency stop."""

    TOUCHED = 0.05
    """Deflection above which the person has control. The node itself has a dead zone."""

    def unreleased(self, axes: Sequence[float]) -> str:
        """Return "": the cap springs back, so control needs no release before."""
        return ""

    def as_ours(self, axes: list[float], buttons: list[int], legged: bool) -> tuple[list[float], list[int]]:
        """Convert the node's axes and buttons, as `Pad.as_ours`."""
        motion, rotation = axes[:3], axes[3:]
        left, right = buttons
        touched = left or right or max(map(abs, axes)) > self.TOUCHED
        if legged:
            motion, rotation = [*motion[:2], rotation[2]], [0.0, 0.0, 0.0]
        stop = int(left == right == 1)
        return [*motion, float(right - left), *rotation], [int(bool(touched) and not stop), 0, 0, stop, 0]


_JOY_NODE = Pad((1, 0, 4, 3), (2, 5), 1.0, (4, 0, 2, 1, 7, 5))
_JOY_NODE_PLAYSTATION = replace(_JOY_NODE, buttons=(4, 0, 3, 1, 9, 5))
_GAME_CONTROLLER_NODE = Pad((1, 0, 3, 2), (4, 5), 0.0, (9, 0, 2, 1, 6, 10))


def pad_of(msg: Any) -> Pad | Cap | None:
    """Return the layout of a message of ROS's packages joy and spacenav by its numbers of axes and buttons; None if
    unknown.

    `joy_node` has 8 axes; 11 or 12 buttons with an Xbox pad, 13 with a PlayStation pad's own driver.
    `game_controller_node` has 6 axes and SDL's 15 to 21 buttons, `spacenav_node` 6 axes and 2 buttons. A Joy does not
    name its device, and another device of the same size may have another layout, which `Pad.unreleased` detects.
    """
    axes, buttons = len(msg.axes), len(msg.buttons)
    if axes == 8 and 11 <= buttons <= 13:
        return _JOY_NODE_PLAYSTATION if buttons == 13 else _JOY_NODE
    if (axes, buttons) == (6, 2):
        return Cap()
    return _GAME_CONTROLLER_NODE if axes == 6 and 15 <= buttons <= 21 else None


def stick_motion(
    left: tuple[float, float], right: tuple[float, float], tilts: bool
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return an arm's motion and rotation for two sticks (forward, left), each -1 to 1.

    The left stick moves the tool; with `tilts` it leans the tool's upper end in the same direction. The right stick
    moves the tool up and down and turns it about the vertical axis: left is counterclockwise from above.
    """
    (forward, leftward), (up, turn) = left, right
    motion, lean = ((0.0, 0.0), (-leftward, forward)) if tilts else ((forward, leftward), (0.0, 0.0))
    return (*motion, up), (*lean, turn)
