"""Drivers, which convert a robot's messages to named state views, and commands to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from robot_rl.interface.robot import RobotSpec, UnitreeInterface

if TYPE_CHECKING:
    from real.bus import Node
    from real.robots.base import Driver


def open_driver(
    node: Node, robot: RobotSpec, objects: Sequence[str] = (), cameras: Sequence[str] = (), dry_run: bool = False
) -> Driver:
    """Return the driver for a robot's topics."""
    if isinstance(robot.ros, UnitreeInterface):
        from real.robots.unitree import UnitreeDriver

        return UnitreeDriver(node, robot, objects, cameras, dry_run)
    from real.robots.arm import ArmDriver

    return ArmDriver(node, robot, objects, cameras, dry_run)
