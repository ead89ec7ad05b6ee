"""Tasks by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.registry import DATASET, Registry

if TYPE_CHECKING:
    from sim.scenes import Scene
    from sim.tasks.base import Task


def _renamed(task: Task, name: str, path: str) -> Task:
    """Return the task under its registered name, by which the bundle of a policy refers to its task."""
    return task if task.name == name else replace(task, interface=replace(task.interface, task=name))


tasks = Registry(
    "task",
    {
        "anymal-flat": ("sim.tasks.anymal_flat:TASK", "an ANYmal C follows velocity commands on flat ground"),
        "fr3-lift": ("sim.tasks.fr3_lift:TASK", "a Franka Research 3 lifts a cube from the table"),
        "fr3-place": ("sim.tasks.fr3_lift:PLACE", "a Franka Research 3 puts a cube into a tray"),
        "fr3-push": ("sim.tasks.fr3_lift:PUSH", "a Franka Research 3 pushes a block to a goal pose"),
        "fr3-stack": ("sim.tasks.fr3_lift:STACK", "a Franka Research 3 stacks a cube on another"),
        "fr3-reach": ("sim.tasks.fr3_reach:TASK", "a Franka Research 3 brings its tool to a target"),
        "go2-velocity": ("sim.tasks.go2_velocity:TASK", "a Unitree Go2 follows velocity commands on flat ground"),
        "go2-flat": ("sim.tasks.go2_flat:TASK", "the same without a scripted trot: the gait is learned"),
        "go2-rough": ("sim.tasks.go2_rough:TASK", "a Unitree Go2 follows velocity commands on slopes and stairs"),
        "go2-rough-scan": ("sim.tasks.go2_rough:SCAN_TASK", "the same, with a scan of the ground around the robot"),
        "panda-lift": ("sim.tasks.panda_lift:TASK", "a Franka Panda lifts a cube from the table"),
        "panda-drawer": ("sim.tasks.panda_drawer:TASK", "a Franka Panda opens a drawer"),
        "panda-insert": ("sim.tasks.panda_insert:TASK", "a Franka Panda inserts a peg with 1 mm of clearance"),
        "panda-lift-cameras": ("sim.tasks.panda_lift_cameras:TASK", "the same, observed by two cameras only"),
        "panda-place": ("sim.tasks.panda_place:TASK", "a Franka Panda puts a cube into a tray"),
        "panda-push": ("sim.tasks.panda_push:TASK", "a Franka Panda pushes a block to a goal pose"),
        "panda-stack": ("sim.tasks.panda_place:STACK", "a Franka Panda stacks a cube on another"),
        "panda-turn": ("sim.tasks.panda_turn:TASK", "a Franka Panda turns its hand to a cube and lifts it"),
        "so101-reach": ("sim.tasks.so101_reach:TASK", "an SO-101 brings its tool to a target"),
        "tabletop": ("sim.tasks.tabletop:TASK", "a Franka Panda follows instructions with four objects and a tray"),
        "ur5e-reach": ("sim.tasks.ur5e_reach:TASK", "a Universal Robots UR5e brings its flange to a target"),
    },
    instance_of="sim.tasks.base:Task",
    finish=_renamed,
)


def task_of(robot: str, name: str | None = None) -> Task:
    """Return task `name` of a robot; without a name, the robot's first task in the list above, then those of plugins.
    Plugins that cannot be imported are skipped. Raise ConfigError if there is no task for the robot. A task of the
    robot of which this one is a variant is returned for the variant."""
    kind = robots.get(robot).kind
    if name is None:
        broken = []
        order = list(tasks.entries)
        for candidate in [*order, *(name for name in tasks if name not in order)]:
            try:
                task: Task = tasks.get(candidate)
            except UserError as error:
                if candidate in tasks.entries:
                    raise
                broken.append(str(error))
                continue
            if task.interface.robot == kind:
                return task.on(robot)
        rest = "; ".join(["`robot-rl tasks` lists the tasks", *broken])
        raise ConfigError(f"no task is for robot {robot!r}, so it has no twin; {rest}")
    task = tasks.get(name)
    if task.interface.robot not in (kind, robot):
        raise ConfigError(
            f"task {name!r} is for robot {task.interface.robot!r}, not {robot!r}; leave out the task's name"
        )
    return task.on(robot)


FOREIGN = "gym:"
"""Prefix of tasks that are Gymnasium environments of other packages."""
TESTBED = "testbed:"
"""Prefix of tasks in `sim.testbeds`."""


def without_robot(task: str) -> bool:
    """Return whether a task has no `RobotSpec`: a Gymnasium environment of another package, a testbed, or a dataset."""
    return task.startswith((FOREIGN, TESTBED, DATASET))


def scene_of(robot: str, name: str | None = None) -> Scene:
    """Return the scene of a robot's task, as of `task_of`; without a name, an empty one for a robot without a task."""
    from sim.scenes import Scene

    try:
        return task_of(robot, name).scene
    except ConfigError:
        if name:
            raise
        return Scene()
