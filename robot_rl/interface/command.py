"""Commands to a robot: a closed set of kinds. Controllers produce them, shields limit them, drivers send them.

A command is a batch of set-points, `values` (n, D). What the D numbers mean is the kind's; a gripper's command is
separate, because arms and grippers of one robot often have different drivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from robot_rl.interface.robot import RobotSpec


@dataclass(frozen=True)
class JointPositions:
    """Joint positions (n, J), rad, in the spec's order."""

    values: Tensor


@dataclass(frozen=True)
class ToolPose:
    """Poses (n, 7) of the tool in the base frame: position x y z, m, and orientation w x y z."""

    values: Tensor


@dataclass(frozen=True)
class Twist:
    """Velocities (n, 6) of the tool along, m/s, and about, rad/s, the axes x y z of the base frame."""

    values: Tensor


@dataclass(frozen=True)
class BaseVelocity:
    """Velocities (n, 3) of a mobile base in its own frame: forward and left, m/s, and counter-clockwise, rad/s."""

    values: Tensor


Command = JointPositions | ToolPose | Twist | BaseVelocity
KINDS: dict[type[Command], str] = {
    JointPositions: "joint positions", ToolPose: "tool poses", Twist: "tool velocities",
    BaseVelocity: "base velocities",
}  # fmt: skip
"""Kinds of commands, and their names in messages."""


@dataclass(frozen=True)
class GripperCommand:
    """Command to a gripper."""

    width: float
    """Distance between the fingers, m; 0: closed."""
    force: float
    """Grasping force, N."""
    action: Literal["grasp", "release"]
    """What the command is for: a parallel gripper moves to `width`, a suction gripper holds or lets go."""

    @classmethod
    def of(cls, robot: RobotSpec, width: float) -> GripperCommand:
        """Return the command for a width, m; below half of the open width it grasps."""
        opened, force = (robot.gripper.width, robot.gripper.force) if robot.gripper else (0.0, 0.0)
        return cls(width, force, "grasp" if width < opened / 2 else "release")


EMPTY, OPEN = 0.004, 0.9
"""Maximum width of a closed, empty gripper, m, and share of the open width from which a gripper is open."""


def may_hold(robot: RobotSpec, width: float) -> bool:
    """Return whether a gripper that is `width` m open may hold an object: it is neither closed nor open."""
    return robot.gripper is not None and EMPTY < width < OPEN * robot.gripper.width


def choose(produced: tuple[type[Command], ...], accepted: tuple[type[Command], ...]) -> type[Command] | None:
    """Return the first kind of command that a controller produces and a driver accepts; None if there is none."""
    return next((kind for kind in produced if kind in accepted), None)
