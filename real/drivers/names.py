"""Names of joints and frames in a driver's messages."""

from collections.abc import Collection

from real.bus import Node
from real.topics import JOINT_PREFIX
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError


def prefix(node: Node) -> str:
    """Return the joint prefix that a node was started with."""
    given = node.parameters.get(JOINT_PREFIX) or ""
    if not isinstance(given, str):
        raise ConfigError(f"{JOINT_PREFIX} is {given!r}, which is no text; write {JOINT_PREFIX}:='\"{given}\"'")
    return given


def driver_names(node: Node, robot: RobotSpec) -> tuple[str, ...]:
    """Return the driver's names of the robot's joints, then of its fingers."""
    return robot.driver_names(prefix(node))


def frames(node: Node, robot: RobotSpec) -> tuple[str, ...]:
    """Return the accepted names of the robot's base frame."""
    names = robot.driver.base_frames
    return tuple(dict.fromkeys((*(prefix(node) + name for name in names), *names)))


def suggestion(robot: RobotSpec, names: Collection[str]) -> str:
    """Return advice if the spec has none of the driver's joint names; empty if it has one."""
    own = robot.driver_names()
    if not set(own).isdisjoint(names):
        return ""
    for name in names:
        given_prefix = name.removesuffix(own[0])
        if name.endswith(own[0]) and {given_prefix + other for other in own[: len(robot.joints)]} <= set(names):
            argument = f"{JOINT_PREFIX}:={given_prefix}"
            return f"they have a prefix: {argument} (--ros-args -p {argument} without a launch file)"
    mapping = f'driver.joint_names, pairs (("{robot.joint_names[0]}", "NAME IN THE MESSAGES"), ...)'
    return f"a common prefix is {JOINT_PREFIX}:=PREFIX, and other names go into the spec's {mapping}"
