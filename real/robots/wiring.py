"""Names of joints and frames in a driver's messages, made of those in the spec."""

from __future__ import annotations

from collections.abc import Collection

from real.bus import Node
from real.topics import JOINT_PREFIX
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError


def prefix(node: Node) -> str:
    """Return the prefix that a node was started with."""
    given = node.parameters.get(JOINT_PREFIX) or ""
    if not isinstance(given, str):
        raise ConfigError(f"{JOINT_PREFIX} is {given!r}, which is no text; write {JOINT_PREFIX}:='\"{given}\"'")
    return given


def driver_names(node: Node, robot: RobotSpec) -> tuple[str, ...]:
    """Return the names of the robot's joints, then of its fingers, in its driver's messages."""
    return robot.driver_names(prefix(node))


def frames(node: Node, robot: RobotSpec) -> tuple[str, ...]:
    """Return the names that the robot's base frame may have in messages."""
    names = robot.ros.base_frames
    return tuple(dict.fromkeys((*(prefix(node) + name for name in names), *names)))


def suggestion(robot: RobotSpec, heard: Collection[str]) -> str:
    """Return what to do if a driver's names are none of the robot's; empty if some are."""
    own = robot.driver_names()
    if not set(own).isdisjoint(heard):
        return ""
    for name in heard:
        found = name.removesuffix(own[0])
        if name.endswith(own[0]) and {found + other for other in own[: len(robot.joints)]} <= set(heard):
            given = f"{JOINT_PREFIX}:={found}"
            return f"they have a prefix: {given} (--ros-args -p {given} without a launch file)"
    return f"a common prefix is {JOINT_PREFIX}:=PREFIX, and other names go into the spec's ros.joint_names"
