"""What a task reads of a state must be there: it is tried once, on one robot, where the task is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from robot_rl.interface.observations import Observer
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import Misfit
from sim.sensors import UNSEEN

if TYPE_CHECKING:
    from sim.tasks.base import Task


def view_sizes(task: Task, pipeline: Pipeline) -> dict[str, int]:
    """Numbers in each view of a robot's true state in this task; those of objects are not among them."""
    robot, joints = pipeline.robot, len(pipeline.robot.joints)
    sizes = {"joint_position": joints, "joint_velocity": joints, "last_action": pipeline.actions.size}
    if robot.tool:
        sizes["tool_position"] = 3
    if robot.gripper:
        sizes["gripper_width"] = 1
    if robot.base:
        feet = len(robot.base.feet)
        sizes |= {"base_position": 3, "base_quat": 4, "base_velocity": 3, "base_angular_velocity": 3}
        sizes |= {"foot_position": 3 * feet, "foot_velocity": 3 * feet, "foot_force": feet, "joint_torque": joints}
    if task.commands:
        sizes["command"] = pipeline.command.size
    if task.interface.gait:
        sizes["phase"] = 1
    return sizes


class _Zeros:
    """Stands for the state of one robot; a view that it lacks says why."""

    def __init__(self, task: Task, robot: str, sizes: dict[str, int], unseen: Sequence[str] = ()):
        self.objects = {box.name: torch.zeros(1, 7) for box in task.scene.boxes}
        for name, size in sizes.items():
            if name not in unseen:
                setattr(self, name, torch.zeros(1, size))
        self._reasons = {"command": "and the task has no commands", "phase": "and the interface has no gait"}
        self._reasons |= {name: "which no sensor measures" for name in unseen if name in sizes}
        self._robot = robot

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Misfit(f"{name}, {self._reasons.get(name, f'which robot {self._robot!r} does not have')}")


def check_views(task: Task, pipeline: Pipeline, privileged: Observer) -> None:
    """Refuse observation terms, a controller and tests that read what will not be there."""
    sizes = view_sizes(task, pipeline)
    true, seen = (_Zeros(task, pipeline.robot.name, sizes, unseen) for unseen in ((), UNSEEN))
    action = torch.zeros(1, pipeline.actions.size)
    vars(seen)["reference"] = pipeline.controller.reference(1)
    readers: list[tuple[str, Callable[[Any], Any], Any]] = [
        ("the controller", lambda s: pipeline.target(s, action), seen)
    ]
    for observer, state in ((pipeline.observer, seen), (privileged, true)):
        terms = zip(observer.names, observer.terms, strict=True)
        readers += [(f"observation term {name!r}", term.compute, state) for name, term in terms]
    for name, test in ((task.interface.success, pipeline.success), (task.interface.failure, pipeline.failure)):
        if test:
            readers.append((f"test {name!r}", test, true))
    for what, read, state in readers:
        try:
            read(state)
        except Misfit as error:
            raise Misfit(f"{what} reads {error}") from None
