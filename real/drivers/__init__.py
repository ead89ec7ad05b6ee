"""Drivers: they convert a robot's messages to named state views, and commands to messages.

A driver's name is in the robot's spec (`RobotSpec.driver`). Other packages register drivers by an entry point:

    [project.entry-points."robot_rl.drivers"]
    velocity_arm = "my_lab.velocity_arm:DRIVER"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.registry import Registry

if TYPE_CHECKING:
    from real.bus import Node
    from real.drivers.driver import Driver, DriverParts

drivers = Registry(
    "driver",
    {
        "forward_position": (
            "real.drivers.forward_position:DRIVER", "ros2_control: joint states, streamed positions, a gripper's width"
        ),
        "forward_velocity": (
            "real.drivers.forward_velocity:DRIVER", "ros2_control: joint states, streamed velocities, a gripper's width"
        ),
        "joint_trajectory": (
            "real.drivers.joint_trajectory:DRIVER", "ros2_control: joint states, streamed trajectories of one point"
        ),
        "target_pose": ("real.drivers.cartesian:TARGET_POSE", "Cartesian impedance controllers, such as CRISP's"),
        "servo_twist": ("real.drivers.cartesian:SERVO_TWIST", "MoveIt Servo: velocities of the tool"),
        "franka": ("real.drivers.held_arm:DRIVER", "Franka arms, held by `robot-rl robot` through Franka's protocol"),
        "lerobot": ("real.drivers.held_arm:DRIVER", "arms held by `robot-rl robot` through an installed LeRobot"),
        "unitree_low_level": ("real.drivers.unitree:DRIVER", "Unitree's LowState and LowCmd, through our guard"),
        "unitree_sport": ("real.drivers.unitree_sport:DRIVER", "Unitree's sport mode: velocities of the robot"),
    },
    instance_of="real.drivers.driver:DriverParts",
)  # fmt: skip


def parts_of(robot: RobotSpec) -> DriverParts:
    """Return the parts of a robot's driver."""
    if not robot.driver.driver:
        raise ConfigError(
            f"robot {robot.name!r}: its driver config {type(robot.driver).__name__} names no driver; set "
            f"`driver: ClassVar[str]` to one of {', '.join(drivers)}, or to an import path"
        )
    parts: DriverParts = drivers.get(robot.driver.driver)
    parts.check(robot)
    return parts


def open_driver(
    node: Node, robot: RobotSpec, objects: Sequence[str] = (), cameras: Sequence[str] = (), dry_run: bool = False
) -> Driver:
    """Return the driver of a robot, with the objects and cameras to listen to."""
    from real.drivers.driver import Driver

    return Driver(node, robot, parts_of(robot), objects, cameras, dry_run)
