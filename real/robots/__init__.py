"""Drivers: a robot's own topics on one side, the named state views on the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from robot_rl.interface.spec import RobotSpec, UnitreeInterface

if TYPE_CHECKING:
    from real.bus import Node
    from real.robots.base import Driver


def open_driver(
    node: Node, robot: RobotSpec, objects: Sequence[str] = (), cameras: Sequence[str] = (), dry_run: bool = False
) -> Driver:
    """The driver for the topics that this robot speaks."""
    if isinstance(robot.ros, UnitreeInterface):
        from real.robots.unitree import UnitreeDriver

        return UnitreeDriver(node, robot, objects, cameras, dry_run)
    from real.robots.arm import ArmDriver

    return ArmDriver(node, robot, objects, cameras, dry_run)
