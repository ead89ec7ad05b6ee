"""Registry of robots by name."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from robot_rl.util.registry import Registry

if TYPE_CHECKING:
    from robot_rl.interface.robot import RobotSpec


def _as_found(robot: RobotSpec, name: str, path: str) -> RobotSpec:
    """Return the robot with the name under which it was found, because bundles store that name. A model file next to
    the spec gets an absolute path."""
    file = sys.modules[path.partition(":")[0]].__file__
    model = Path(file).parent / robot.model if file else Path()
    path_of_model = str(model) if model.is_file() else robot.model
    if (name, path_of_model) == (robot.name, robot.model):
        return robot
    return replace(robot, name=name, model=path_of_model)


robots = Registry(
    "robot",
    {
        "anymal_c": ("robot_rl.robots.anymal_c:ANYMAL_C", "ANYbotics ANYmal C, a quadruped with 12 joints"),
        "fr3": ("robot_rl.robots.fr3:FR3", "Franka Research 3, 7 joints and a parallel gripper"),
        "go2": ("robot_rl.robots.go2:GO2", "Unitree Go2, a quadruped with 12 joints"),
        "go2_sport": ("robot_rl.robots.go2:GO2_SPORT", "Unitree Go2 in its own sport mode, for `robot-rl drive`"),
        "panda": ("robot_rl.robots.panda:PANDA", "Franka Emika Panda, 7 joints and a parallel gripper"),
        "so101": ("robot_rl.robots.so101:SO101", "SO-101, 5 joints and a gripper, held by LeRobot"),
        "ur5e": ("robot_rl.robots.ur5e:UR5E", "Universal Robots UR5e, 6 joints and a bare flange"),
    },
    instance_of="robot_rl.interface.robot:RobotSpec",
    finish=_as_found,
)


def folder_of(name: str) -> Path | None:
    """Return the folder of the file with a robot's spec; None for a robot that no file registers."""
    with suppress(KeyError):
        module = sys.modules.get(robots.path(name).partition(":")[0])
        return Path(module.__file__).parent if module and module.__file__ else None
    return None
