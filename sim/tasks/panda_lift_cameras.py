"""A Franka Panda lifts a cube that it sees with two cameras, one in front of it and one on its hand."""

from __future__ import annotations

from dataclasses import replace

from robot_rl.interface.pipeline import Picture
from sim.scenes import Camera
from sim.tasks.panda_lift import TASK as LIFT

WRIST = Camera("wrist", position=(0.1, 0.0, 0.03), target=(0.03, 0.0, 0.14), fovy=75.0, body="hand")

TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="panda-lift-cameras",
        observations=("joint_position", "tool_position", "gripper_width", "last_action"),
        cameras=(),  # those of the scene
        pictures=(Picture("front"), Picture("wrist")),
    ),
    scene=replace(LIFT.scene, cameras=(*LIFT.scene.cameras, WRIST)),
    expert_observations=LIFT.interface.observations,
)
