"""Names of joints and frames in a driver's messages, derived from those in the spec."""

from __future__ import annotations

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
    names = robot.ros.base_frames
    return tuple(dict.fromkeys((*(prefix(node) + name for name in names), *names)))


def suggestion(robot: RobotSpec, heard: Collection[str]) -> str:
    """Return advice if none of the driver's joint names is known; empty if one is."""
    own = robot.driver_names()
    if not set(own).isdisjoint(heard):
        return ""
    for name in heard:
        given_prefix = name.removesuffix(own[0])
        if name.endswith(own[0]) and {given_prefix + other for other in own[: len(robot.joints)]} <= set(heard):
            argument = f"{JOINT_PREFIX}:={given_prefix}"
            return f"they have a prefix: {argument} (--ros-args -p {argument} without a launch file)"
    return f"a common prefix is {JOINT_PREFIX}:=PREFIX, and other names go into the spec's ros.joint_names"
