"""Observation terms: batched functions of the state views, listed by name in a task and carried in its bundle."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from robot_rl.errors import UnknownName, UserError
from robot_rl.spec import Field, RobotSpec, VectorSpec, box
from robot_rl.state import RobotState


class Term(NamedTuple):
    """A part of the observation: what it is and how to compute it."""

    field: Field
    compute: Callable[[RobotState], Tensor]


def joint_position(robot: RobotSpec, actions: VectorSpec) -> Term:
    """Encoder readings, rad."""
    low, high = tuple(j.low for j in robot.joints), tuple(j.high for j in robot.joints)
    return Term(Field("joint_position", robot.joint_names, "rad", low, high), lambda s: s.joint_position)


def joint_velocity(robot: RobotSpec, actions: VectorSpec) -> Term:
    """Encoder speeds, rad/s."""
    high = tuple(j.velocity for j in robot.joints)
    low = tuple(-v for v in high)
    return Term(Field("joint_velocity", robot.joint_names, "rad/s", low, high), lambda s: s.joint_velocity)


def tool_position(robot: RobotSpec, actions: VectorSpec) -> Term:
    """Tool position by forward kinematics, m."""
    low, high = robot.workspace
    return Term(Field("tool_position", ("x", "y", "z"), "m", low, high, "base"), lambda s: s.tool_position)


def gripper_width(robot: RobotSpec, actions: VectorSpec) -> Term:
    """Measured distance between the fingers, m."""
    assert robot.gripper is not None
    return Term(box("gripper_width", "width", "m", 0.0, robot.gripper.width), lambda s: s.gripper_width)


def last_action(robot: RobotSpec, actions: VectorSpec) -> Term:
    """The action executed in the previous control period, in [-1, 1]."""
    dims = " ".join(actions.names)
    return Term(box("last_action", dims, "1", -1.0, 1.0), lambda s: s.last_action)


def object_position(robot: RobotSpec, actions: VectorSpec, name: str) -> Term:
    """Tracked position of an object, m."""
    low, high = robot.workspace
    field = Field(f"{name}_position", ("x", "y", "z"), "m", low, high, "base")
    return Term(field, lambda s: s.objects[name][:, :3])


def object_to_tool(robot: RobotSpec, actions: VectorSpec, name: str) -> Term:
    """Object position minus tool position, m."""
    field = box(f"{name}_to_tool", "x y z", "m", -0.5, 0.5, "base")
    return Term(field, lambda s: s.objects[name][:, :3] - s.tool_position)


TERMS: dict[str, Callable[..., Term]] = {
    f.__name__: f
    for f in (
        joint_position,
        joint_velocity,
        tool_position,
        gripper_width,
        last_action,
        object_position,
        object_to_tool,
    )
}


class Observer:
    """Concatenates named terms into `observation.state`.

    A name is a term, optionally followed by a colon and its argument: "object_position:cube".
    """

    def __init__(self, names: Sequence[str], robot: RobotSpec, actions: VectorSpec):
        self.names = tuple(names)
        self.terms = []
        for name in self.names:
            term, _, argument = name.partition(":")
            if term not in TERMS:
                raise UnknownName("observation term", term, TERMS)
            takes = "name" in inspect.signature(TERMS[term]).parameters
            if takes != bool(argument):
                how = f"{term}:<object>" if takes else term
                raise UserError(f"observation term {name!r} is written {how}")
            self.terms.append(TERMS[term](robot, actions, *([argument] if argument else [])))
        self.spec = VectorSpec(tuple(t.field for t in self.terms))
        self.objects = tuple(dict.fromkeys(n.partition(":")[2] for n in self.names if ":" in n))
        """Objects whose pose the terms read."""

    def __call__(self, state: RobotState) -> Tensor:
        """Return (n, spec.size) float32."""
        return torch.cat([t.compute(state) for t in self.terms], -1)
