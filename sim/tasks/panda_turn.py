"""Franka Panda lifts a cube at any yaw angle: 20 Hz control of the tool's position and orientation.

The cube's diagonal is wider than the open gripper, so the hand must align with the cube's sides.
"""

from dataclasses import replace

from robot_rl.interface.control import ToolDeltaConfig
from sim.objects import Box
from sim.randomization import Randomize
from sim.tasks.panda_lift import TASK as LIFT

_OTHER = ("cube.yaw", "cube.size", "cube.mass")

TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="panda-turn",
        instruction="turn the hand to the cube and lift it",
        observations=(
            "joint_position", "tool_position", "tool_rotation", "gripper_width", "object_position:cube",
            "object_to_tool:cube", "object_in_tool:cube", "last_action",
        ),
        horizon=120,
        controller=ToolDeltaConfig(turn=0.1),
    ),
    scene=replace(LIFT.scene, objects=(Box("cube", size=0.0315, mass=0.15),)),
    randomization=(
        *(r for r in LIFT.randomization if r.parameter not in _OTHER),
        Randomize("cube.yaw", -0.785, 0.785),  # a cube is symmetric every 90 degrees
        Randomize("cube.size", 0.03, 0.033, optional=True),
        Randomize("cube.mass", 0.1, 0.4, "log_uniform"),
    ),
    expert="sim.experts.turn:TurnExpert",
)  # fmt: skip
