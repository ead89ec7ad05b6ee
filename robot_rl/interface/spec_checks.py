"""Facts about a robot that cannot be, said where its spec is written and not where they first do harm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from robot_rl.util.errors import nearest

if TYPE_CHECKING:
    from robot_rl.interface.spec import RobotSpec, UnitreeInterface

_POSITIVE = ("velocity", "acceleration", "effort")
_NOT_NEGATIVE = ("stiffness", "damping")


def check_robot(robot: RobotSpec, wire: UnitreeInterface | None) -> None:
    """Raise ValueError with the first fact that cannot be; `wire` is the interface of a robot that numbers motors."""
    for fault in _faults(robot, wire):
        raise ValueError(f"robot {robot.name!r}{fault}")


def _faults(robot: RobotSpec, wire: UnitreeInterface | None) -> Iterator[str]:
    """What is wrong, as it goes on behind the robot's name."""
    for name in ("state_rate", "command_rate"):
        yield from _number(name, getattr(robot, name), positive=True)
    for name in ("armature", "joint_friction"):
        if (value := getattr(robot, name)) is not None:
            yield from _number(name, value, positive=False)
    yield from _twice("joint", robot.joint_names)
    yield from _posture("home", robot.home, robot)
    for joint in robot.joints:
        for name in (*_POSITIVE, *_NOT_NEGATIVE):
            yield from _number(f"{joint.name}: {name}", getattr(joint, name), name in _POSITIVE)
        yield from _place(joint.name, joint.position, joint.quat)
        yield from _direction(f"{joint.name}: axis", joint.axis)
    if robot.tool:
        yield from _place(robot.tool.name, robot.tool.position, robot.tool.quat)
        for axis, low, high in zip("xyz", *robot.tool.workspace, strict=True):
            if not -math.inf < low < high < math.inf:
                yield f", {robot.tool.name}: workspace in {axis}: low {low} is not below high {high}"
    if robot.gripper:
        for name in ("width", "force"):
            yield from _number(f"gripper.{name}", getattr(robot.gripper, name), positive=True)
    if robot.base:
        yield from _number("base.height", robot.base.height, positive=True)
        yield from _number("base.foot_radius", robot.base.foot_radius, positive=False)
        yield from _twice("foot", robot.base.feet)
        if robot.base.lying:
            yield from _posture("lying", robot.base.lying, robot)
    if wire:
        yield from _wired("motors", wire.motors, "joint", robot.joint_names)
        yield from _wired("feet", wire.feet, "foot", robot.base.feet if robot.base else ())


def _number(name: str, value: float, positive: bool) -> Iterator[str]:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        yield f", {name} {value} is not {'a positive' if positive else 'zero or a positive'} number"


def _place(name: str, position: Sequence[float], quat: Sequence[float]) -> Iterator[str]:
    if not all(map(math.isfinite, position)):
        yield f", {name}: position {tuple(position)} is not finite"
    yield from _direction(f"{name}: quat", quat)


def _direction(name: str, vector: Sequence[float]) -> Iterator[str]:
    if not math.isfinite(length := math.hypot(*vector)) or length < 1e-6:
        yield f", {name} {tuple(vector)} has no direction"


def _twice(kind: str, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if names.count(name) > 1:
            yield f": {kind} {name!r} stands there {names.count(name)} times; name each once"


def _posture(name: str, angles: Sequence[float], robot: RobotSpec) -> Iterator[str]:
    if len(angles) != len(robot.joints):
        yield f": {name} has {len(angles)} numbers for {len(robot.joints)} joints"
    for joint, angle in zip(robot.joints, angles, strict=False):
        if not -math.inf < joint.low < joint.high < math.inf:
            yield f", {joint.name}: low {joint.low} is not below high {joint.high}"
        if not joint.low <= angle <= joint.high:
            yield f", {joint.name}: {name} {angle} is outside {joint.low} to {joint.high}"


def _wired(name: str, wired: Sequence[str], kind: str, own: Sequence[str]) -> Iterator[str]:
    """The order in messages must have each of the robot's own once."""
    yield from _twice(f"{kind} in ros.{name}", wired)
    for one in wired:
        if one not in own:
            yield f", ros.{name}: it has no {kind} {one!r}; {nearest(one, own)}"
    if missing := [one for one in own if one not in wired]:
        yield f", ros.{name}: it lacks {kind} {', '.join(missing)}; give the order of all"
