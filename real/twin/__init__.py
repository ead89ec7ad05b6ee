"""Twin: a simulated robot on the real robot's topics, with dynamics outside the training ranges.

Topics, types, rates and names are those of the robot's spec: a policy node cannot distinguish twin and robot.
Additional topics begin with `twin/`. `twin/reset` (std_msgs/String, a seed as JSON) resets objects or a fallen robot,
in place of a person. `twin/stall` reports stalls; the other topics carry true poses.
"""

from typing import Any

from real.bus import Node
from real.twin.arm import ArmTwin, HiddenArm
from real.twin.base import Twin
from real.twin.quadruped import HiddenQuadruped, QuadrupedTwin
from robot_rl.robots import robots
from sim.tasks.base import Task

__all__ = ["ArmTwin", "HiddenArm", "HiddenQuadruped", "QuadrupedTwin", "Twin", "open_twin"]


def open_twin(node: Node, task: Task, **options: Any) -> Twin:
    """Build the twin of the task's robot."""
    kind: type[Twin] = QuadrupedTwin if robots.get(task.interface.robot).base else ArmTwin
    return kind(node, task, **options)
