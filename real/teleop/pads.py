"""Gamepads behind ROS's joystick nodes, and the bindings of every gamepad's sticks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

AT_REST = 0.08
"""Largest distance of a released stick or trigger from its rest, of full deflection."""


@dataclass(frozen=True)
class Pad:
    """Places of a pad's axes and buttons in the messages of a joystick node."""

    sticks: tuple[int, int, int, int]
    """Left stick forward and left, right stick forward and left; all positive there."""
    triggers: tuple[int, int]
    """LT and RT; pulled they are -1."""
    rest: float
    """Value of a released trigger."""
    buttons: tuple[int, int, int, int, int, int]
    """LB, A, X, B, Menu: `BUTTONS`; and RB."""

    def unreleased(self, axes: Sequence[float]) -> str:
        """Return the axes that do not stand where released sticks and triggers do, as text; empty if all do."""
        rest = dict.fromkeys(self.sticks, 0.0) | dict.fromkeys(self.triggers, self.rest)
        away = [k for k in sorted(rest) if not abs(axes[k] - rest[k]) <= AT_REST]
        return ", ".join(f"axis {k} is {axes[k]:g}, released {rest[k]:g}" for k in away)

    def as_ours(self, axes: list[float], buttons: list[int], legged: bool) -> tuple[list[float], list[int]]:
        """Return axes and buttons as `AXES` and `BUTTONS`."""
        forward, left, up, turn = (axes[k] for k in self.sticks)
        motion, rotation = (forward, left, turn), (0.0, 0.0, 0.0)
        *ours, tilts = (buttons[k] for k in self.buttons)
        if not legged:
            motion, rotation = stick_motion((forward, left), (up, turn), tilts == 1)
        # Before a trigger is touched, joy_linux reports 0.
        opened, closed = ((self.rest - axes[k]) / (1.0 + self.rest) if axes[k] else 0.0 for k in self.triggers)
        return [*motion, opened - closed, *rotation], ours


_JOY_NODE = Pad((1, 0, 4, 3), (2, 5), 1.0, (4, 0, 2, 1, 7, 5))
_JOY_NODE_PLAYSTATION = replace(_JOY_NODE, buttons=(4, 0, 3, 1, 9, 5))
_GAME_CONTROLLER_NODE = Pad((1, 0, 3, 2), (4, 5), 0.0, (9, 0, 2, 1, 6, 10))


def pad_of(msg: Any) -> Pad | None:
    """Return the layout of a Joy of the package joy, by its size: `joy_node` has 8 axes, and 11 or 12 buttons with an
    Xbox pad, 13 with a PlayStation pad by its own driver; `game_controller_node` 6 axes and SDL's 15 to 21 buttons.

    Nothing in a Joy names the device, and by `joy_node` another one of that size may have another layout: see
    `Pad.unreleased`.
    """
    axes, buttons = len(msg.axes), len(msg.buttons)
    if axes == 8 and 11 <= buttons <= 13:
        return _JOY_NODE_PLAYSTATION if buttons == 13 else _JOY_NODE
    return _GAME_CONTROLLER_NODE if axes == 6 and 15 <= buttons <= 21 else None


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
