"""Franka Panda pushes a block to a goal pose with the closed gripper: 20 Hz end-effector control, sparse reward.

Success is a block within 2 cm and 15 degrees of the goal, a pose without a body. A block that was pushed too far can
only be recovered from its other side.
"""

from dataclasses import replace

from robot_rl.interface.control import ToolDeltaConfig
from sim.objects import Box
from sim.randomization import Randomize
from sim.scenes import Scene
from sim.tasks.panda_lift import TASK as LIFT

TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="panda-push",
        instruction="push the block to the goal",
        observations=(
            "joint_position", "tool_position", "tool_rotation", "gripper_width", "object_position:block",
            "object_heading:block", "object_to_tool:block", "object_in_tool:block", "object_to_object:goal:block",
            "object_heading:goal", "last_action",
        ),
        success="matched:block:goal:0.02:15",
        horizon=160,
        controller=ToolDeltaConfig(turn=0.1),
    ),
    scene=Scene(
        objects=(
            Box("block", (0.02, 0.05, 0.012), 0.15),
            Box("goal", (0.02, 0.05, 0.001), 0.1, rgba=(0.15, 0.7, 0.25, 0.5), solid=False),
        ),
        cameras=LIFT.scene.cameras,
    ),
    randomization=(
        Randomize("block.x", 0.42, 0.47),
        Randomize("block.y", -0.05, 0.05),
        Randomize("block.yaw", -0.3, 0.3),
        Randomize("goal.x", 0.57, 0.63),
        Randomize("goal.y", -0.05, 0.05),
        Randomize("goal.yaw", -0.3, 0.3),
        Randomize("block.mass", 0.08, 0.3, "log_uniform"),
        Randomize("block.friction", 0.6, 1.4),
        *(r for r in LIFT.randomization if not r.parameter.startswith("cube.")),
    ),
    expert="sim.experts.push:PushExpert",
)  # fmt: skip
