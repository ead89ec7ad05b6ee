"""Observation terms: batched functions of the robot state, listed in a task and stored in its bundle.

A term is built by a function annotated to return `Term`. Parameters annotated `Context` get the context; objects and
numbers are written as in `robot_rl.interface.call`: `object_to_object:cube:bowl`. Other packages register terms as
entry points of group `robot_rl.terms`, or an import path names the function.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from robot_rl.interface.call import read_call
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import FloatingBase, RobotSpec
from robot_rl.interface.rotation import heading, matrix_to_columns, quat_to_matrix
from robot_rl.interface.spec import NOTHING, Field, VectorSpec, box
from robot_rl.interface.state import JointedName, ObjectName, RobotState, is_commanded
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt, PositiveFloat
from robot_rl.util.registry import Registry


class Term(NamedTuple):
    """Part of observation.state: its field, and the function that computes its values (n, size) from a robot state."""

    field: Field
    compute: Callable[[RobotState], Tensor]
    scan: tuple[tuple[float, float], ...] = ()
    """Points at which the term reads `height_scan`, m forward and left of the trunk in its heading frame."""


@dataclass(frozen=True)
class Context:
    """Robot and specs that determine the component names and ranges of a term."""

    robot: RobotSpec
    actions: VectorSpec
    command: VectorSpec
    device: torch.device = torch.device("cpu")
    """Device of the tensors that a term keeps."""

    @property
    def workspace(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Return the lowest and highest tool position x y z in the base frame, m."""
        if self.robot.tool is None:
            raise ConfigError(f"robot {self.robot.name!r} has no tool to observe")
        return self.robot.tool.workspace

    @property
    def base(self) -> FloatingBase:
        if self.robot.base is None:
            raise ConfigError(f"robot {self.robot.name!r} has no feet to observe")
        return self.robot.base


def joint_position(on: Context) -> Term:
    """Joint positions read by the encoders, rad."""
    low, high = tuple(j.low for j in on.robot.joints), tuple(j.high for j in on.robot.joints)
    return Term(Field("joint_position", on.robot.joint_names, "rad", low, high), lambda s: s.joint_position)


def joint_velocity(on: Context) -> Term:
    """Joint velocities read by the encoders, rad/s."""
    high = tuple(j.velocity for j in on.robot.joints)
    low = tuple(-v for v in high)
    return Term(Field("joint_velocity", on.robot.joint_names, "rad/s", low, high), lambda s: s.joint_velocity)


def tool_position(on: Context) -> Term:
    """Tool position in the base frame by forward kinematics, m."""
    return Term(Field("tool_position", ("x", "y", "z"), "m", *on.workspace, "base"), lambda s: s.tool_position)


def tool_rotation(on: Context) -> Term:
    """First two columns of the tool's rotation matrix in the base frame, see `matrix_to_columns`."""
    kinematics = _kinematics(on)
    field = box("tool_rotation", "xx xy xz yx yy yz", "1", -1.0, 1.0, "base")
    return Term(field, lambda s: matrix_to_columns(kinematics.forward(s.joint_position)[1]))


def gripper_width(on: Context) -> Term:
    """Measured distance between the fingers, m."""
    if on.robot.gripper is None:
        raise ConfigError(f"robot {on.robot.name!r} has no gripper to observe")
    return Term(box("gripper_width", "width", "m", 0.0, on.robot.gripper.width), lambda s: s.gripper_width)


def last_action(on: Context) -> Term:
    """Action executed in the previous control period, in [-1, 1]."""
    dims = " ".join(on.actions.names)
    return Term(box("last_action", dims, "1", -1.0, 1.0), lambda s: s.last_action)


def object_position(on: Context, name: ObjectName) -> Term:
    """Tracked position of an object in the base frame, m."""
    field = Field(f"{name}_position", ("x", "y", "z"), "m", *on.workspace, "base")
    return Term(field, lambda s: s.objects[name][:, :3])


def object_to_tool(on: Context, name: ObjectName) -> Term:
    """Object position minus tool position in the base frame, m."""
    field = box(f"{name}_to_tool", "x y z", "m", -0.5, 0.5, "base")
    return Term(field, lambda s: s.objects[name][:, :3] - s.tool_position)


def object_to_object(first: ObjectName, second: ObjectName) -> Term:
    """Position of the first object minus position of the second object in the base frame, m."""
    field = box(f"{first}_to_{second}", "x y z", "m", -0.5, 0.5, "base")
    return Term(field, lambda s: s.objects[first][:, :3] - s.objects[second][:, :3])


def object_heading(name: ObjectName) -> Term:
    """Cosine and sine of the object's yaw angle in the base frame."""
    field = box(f"{name}_heading", "cos sin", "1", -1.0, 1.0, "base")
    return Term(field, lambda s: heading(s.objects[name][:, 3:]))


def object_in_tool(on: Context, name: ObjectName) -> Term:
    """First two columns of the object's rotation matrix in the tool frame, see `matrix_to_columns`."""
    kinematics = _kinematics(on)

    def compute(s: RobotState) -> Tensor:
        rotation = kinematics.forward(s.joint_position)[1].transpose(1, 2) @ quat_to_matrix(s.objects[name][:, 3:])
        return matrix_to_columns(rotation)

    return Term(box(f"{name}_in_tool", "xx xy xz yx yy yz", "1", -1.0, 1.0, "tool"), compute)


def object_joint(name: JointedName, joint: NonNegativeInt = 0) -> Term:
    """Position of a joint of an object, by default its first, m or rad."""
    field = box(f"{name}_joint{joint or ''}", "position", "m or rad", -math.pi, math.pi)
    return Term(field, lambda s: s.object_joints[name][:, joint, None])


def _kinematics(on: Context) -> Kinematics:
    if on.robot.tool is None:
        raise ConfigError(f"robot {on.robot.name!r} has no tool to observe")
    with on.device:
        return Kinematics(on.robot)


def angular_velocity(on: Context) -> Term:
    """Angular velocity of the trunk in its own frame from a gyroscope, rad/s."""
    field = box("angular_velocity", "x y z", "rad/s", -10.0, 10.0, "trunk")
    return Term(field, lambda s: s.base_angular_velocity)


def projected_gravity(on: Context) -> Term:
    """Unit vector along gravity in the trunk frame; it shows the trunk's tilt, but not its heading."""
    field = box("projected_gravity", "x y z", "1", -1.0, 1.0, "trunk")
    return Term(field, lambda s: down(s.base_quat))


def instruction() -> Term:
    """Index of the current instruction in `Interface.instructions`, for demonstrators."""
    return Term(box("instruction", "index", "1", 0.0, 100.0), lambda s: s.instruction)


def command(on: Context) -> Term:
    """Velocity command, in the units of `Interface.command`."""
    if not on.command.fields:
        raise ConfigError("the observation term 'command' needs an interface with a command")
    dims, fields = tuple(on.command.names), on.command.fields
    low, high = (tuple(v for f in fields for v in getattr(f, end)) for end in ("low", "high"))
    return Term(Field("command", dims, "mixed", low, high), lambda s: s.command)


def gait_clock(on: Context) -> Term:
    """Sine and cosine of the gait clock's angle; both are 0 while the velocity command is zero."""

    def compute(s: RobotState) -> Tensor:
        angle = 2 * math.pi * s.phase
        return torch.cat([angle.sin(), angle.cos()], 1) * is_commanded(s)[:, None]

    return Term(box("gait_clock", "sin cos", "1", -1.0, 1.0), compute)


def base_velocity(on: Context) -> Term:
    """Linear velocity of the trunk in its own frame, m/s; simulation only."""
    return Term(box("base_velocity", "x y z", "m/s", -3.0, 3.0, "trunk"), lambda s: s.base_velocity)


def base_height(on: Context) -> Term:
    """Height of the trunk above the ground, m; simulation only."""
    return Term(box("base_height", "z", "m", 0.0, 1.0, "world"), lambda s: s.base_height)


def height_scan(on: Context, length: PositiveFloat, width: PositiveFloat, spacing: PositiveFloat) -> Term:
    """Height of the ground at a grid of points around the trunk, `length` forwards and `width` sideways, minus the
    height of the ground under a robot that stands, m. Rows of points run from right to left, the rearmost row first."""
    counts = [round(size / spacing) for size in (length, width)]
    x, y = ([(k - count / 2) * spacing for k in range(count + 1)] for count in counts)
    points = tuple((round(a, 6), round(b, 6)) for a in x for b in y)
    names = " ".join(f"x{a:g}y{b:g}" for a, b in points)
    height = on.base.height
    return Term(box("height_scan", names, "m", -1.0, 1.0, "heading"), lambda s: s.height_scan + height, points)


def foot_force(on: Context) -> Term:
    """Contact force of each foot in units of 100 N."""
    return Term(box("foot_force", " ".join(on.base.feet), "100 N", 0.0, 5.0), lambda s: s.foot_force / 100)


def down(quat: Tensor) -> Tensor:
    """Return the world's downward unit vector (n, 3) in frames with orientation (n, 4), w x y z."""
    w, x, y, z = quat.unbind(-1)  # the negated third row of the rotation matrix
    return torch.stack([2 * (w * y - x * z), -2 * (w * x + y * z), 2 * (x * x + y * y) - 1], -1)


TERMS: dict[str, Callable[..., Term]] = {
    f.__name__: f
    for f in (
        joint_position, joint_velocity, tool_position, tool_rotation, gripper_width, last_action, object_position,
        object_to_tool, object_to_object, object_heading, object_in_tool, object_joint, angular_velocity,
        projected_gravity, instruction, command, gait_clock, base_velocity, base_height, height_scan, foot_force,
    )
}  # fmt: skip

terms = Registry("observation term", TERMS, group="robot_rl.terms")


def scan_points(terms: Sequence[Term]) -> tuple[tuple[float, float], ...]:
    """Return the points at which terms read `height_scan`; ConfigError if they differ."""
    scans = {term.scan for term in terms if term.scan}
    if len(scans) > 1:
        raise ConfigError("the terms height_scan differ; give all of them the same length, width and spacing")
    return scans.pop() if scans else ()


class Observer:
    """Compute `observation.state` by concatenating terms, which are written like `object_position:cube`."""

    def __init__(
        self,
        names: Sequence[str],
        robot: RobotSpec,
        actions: VectorSpec,
        command: VectorSpec = NOTHING,
        device: torch.device | str = "cpu",
    ):
        self.names = tuple(names)
        given = {Context: Context(robot, actions, command, torch.device(device))}
        calls = [read_call(terms, name, Term, given) for name in self.names]
        self.terms: list[Term] = [call() for call in calls]
        self.spec = VectorSpec(tuple(t.field for t in self.terms))
        self.objects = tuple(dict.fromkeys(name for call in calls for name in call.objects))
        """Names of the views of objects that the terms read, such as `cube` and `drawer.joints`."""
        self.scan = scan_points(self.terms)
        """Points at which the terms read `height_scan`, m forward and left of the trunk in its heading frame."""

    def __call__(self, state: RobotState) -> Tensor:
        """Return `observation.state` (n, spec.size) float32 of n robots."""
        return torch.cat([t.compute(state) for t in self.terms], -1)
