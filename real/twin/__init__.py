"""Twin: a simulated robot on the real robot's topics, with dynamics outside the training ranges.

Topics, types, rates and names are those of the robot's spec: a policy node cannot distinguish twin and robot.
Additional topics begin with `twin/`. `twin/reset` (std_msgs/Int64, a seed) resets objects or a fallen robot,
in place of a person. `twin/stall` reports stalls; the other topics carry true poses.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from real.bus import Node
from real.drivers import parts_of
from real.twin.arm import ArmTwin, HiddenArm
from real.twin.base import Twin
from real.twin.faults import parse_fault
from real.twin.quadruped import HiddenQuadruped, QuadrupedTwin
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from robot_rl.util.registry import load
from sim.tasks.base import Task

__all__ = ["ArmTwin", "HiddenArm", "HiddenQuadruped", "QuadrupedTwin", "Twin", "hidden_values", "open_twin"]


def hidden_values(task: Task) -> dict[str, float]:
    """Return the hidden values of the twin of a task's robot, by parameter."""
    robot = robots.get(task.interface.robot)
    return dict(HiddenQuadruped().values) if robot.base else HiddenArm().of(task)


def open_twin(node: Node, task: Task, fault: Sequence[str] = (), **options: Any) -> Twin:
    """Build the twin of the task's robot, which its driver names, with faults written as in `real.twin.faults`."""
    robot = robots.get(task.interface.robot)
    if fault:
        hidden = options.pop("hidden", None) or (HiddenQuadruped() if robot.base else HiddenArm())
        options["hidden"] = replace(hidden, faults=tuple(parse_fault(text, robot) for text in fault))
    path = parts_of(robot).twin
    if not path:
        raise ConfigError(
            f"robot {robot.name!r} has no twin: its driver {robot.driver.driver!r} names none; write one and "
            "name it in DriverParts.twin, see docs/add-a-driver.md, part 4"
        )
    what = f"twin of robot {robot.name!r}"
    kind = load(path, what)
    if not (isinstance(kind, type) and issubclass(kind, Twin)):
        raise ConfigError(f"{what}: {path} is no subclass of real.twin.base.Twin; correct DriverParts.twin")
    if lacking := sorted(kind.__abstractmethods__):
        raise ConfigError(
            f"{what}: {path} lacks the methods {', '.join(lacking)}; write them, or derive it from "
            "real.twin.arm.ArmTwin, which has all of them"
        )
    twin: Twin = kind(node, task, **options)
    return twin
