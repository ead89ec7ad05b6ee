"""Franka Panda opens a drawer by 15 cm: 20 Hz end-effector control, sparse reward."""

from dataclasses import replace

from sim.objects import Drawer
from sim.randomization import Randomize
from sim.scenes import Camera, Scene
from sim.tasks.panda_lift import TASK as LIFT

TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="panda-drawer",
        instruction="open the drawer",
        observations=(
            "joint_position", "tool_position", "gripper_width", "object_position:drawer_handle",
            "object_to_tool:drawer_handle", "object_position:drawer", "object_joint:drawer", "last_action",
        ),
        success="opened:drawer:0.15",
    ),
    scene=Scene(
        objects=(Drawer("drawer"),),
        cameras=(Camera("front", position=(0.75, -0.9, 0.6), target=(0.5, 0.0, 0.1)),),
    ),
    randomization=(
        Randomize("drawer.x", 0.69, 0.78),
        Randomize("drawer.y", -0.12, 0.12),
        Randomize("drawer.yaw", -0.2, 0.2),
        Randomize("drawer.joint", 0.0, 0.02),
        Randomize("drawer.mass", 0.3, 1.5, "log_uniform", optional=True),
        Randomize("drawer.joint_friction", 0.5, 4.0, optional=True),
        Randomize("drawer.joint_damping", 1.0, 15.0, "log_uniform", optional=True),
        Randomize("drawer.friction", 0.6, 1.4),
        *(r for r in LIFT.randomization if not r.parameter.startswith("cube.")),
    ),
    expert="sim.experts.manipulation:open_drawer",
)  # fmt: skip
