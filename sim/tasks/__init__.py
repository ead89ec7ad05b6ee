"""Tasks by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robot_rl.util.errors import Misfit
from robot_rl.util.registry import Registry

if TYPE_CHECKING:
    from sim.tasks.base import Task

tasks = Registry(
    "task",
    {
        "go2-velocity": ("sim.tasks.go2_velocity:TASK", "a Unitree Go2 walks on flat ground as it is told"),
        "panda-lift": ("sim.tasks.panda_lift:TASK", "a Franka Panda lifts a cube from the table"),
        "panda-turn": ("sim.tasks.panda_turn:TASK", "a Franka Panda turns its hand to a cube and lifts it"),
        "ur5e-reach": ("sim.tasks.ur5e_reach:TASK", "a Universal Robots UR5e brings its flange to a target"),
    },
)


def task_of(robot: str, name: str | None = None) -> Task:
    """The task of this name, which must be for the robot; without a name the robot's first."""
    if name is None:
        for task in map(tasks.get, tasks):
            if task.interface.robot == robot:
                return task
        raise Misfit(f"no task is for robot {robot!r}, so it has no twin; `robot-rl tasks` lists the tasks")
    task = tasks.get(name)
    if task.interface.robot != robot:
        raise Misfit(f"task {name!r} is for robot {task.interface.robot!r}, not {robot!r}; leave out the task's name")
    return task


FOREIGN = "gym:"
"""Prefix of a task that is a Gymnasium environment of another package."""


def is_foreign(task: str) -> bool:
    """Return whether a task is a Gymnasium environment of another package."""
    return task.startswith(FOREIGN)
