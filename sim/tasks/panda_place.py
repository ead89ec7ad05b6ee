"""Franka Panda puts a cube into a tray, or stacks it on another cube: 20 Hz end-effector control, sparse reward."""

from dataclasses import replace

from sim.objects import Box, Tray
from sim.randomization import Randomize
from sim.scenes import Scene
from sim.tasks.panda_lift import TASK as LIFT

HALF = 0.055
"""Half of the tray's inner width, m."""
_PROPRIOCEPTION = ("joint_position", "tool_position", "gripper_width")
_SHARED = tuple(r for r in LIFT.randomization if not r.parameter.startswith("cube."))
CUBE = Box("cube", 0.02, 0.08)


def _around(name: str) -> tuple[Randomize, ...]:
    """Return the ranges of an object's placement around its place."""
    return (
        Randomize(f"{name}.x", -0.04, 0.04),
        Randomize(f"{name}.y", -0.05, 0.05),
        Randomize(f"{name}.yaw", -0.35, 0.35),
    )


TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="panda-place",
        instruction="put the cube into the tray",
        observations=(
            *_PROPRIOCEPTION, "object_position:cube", "object_to_tool:cube", "object_position:tray",
            "object_to_object:cube:tray", "last_action",
        ),
        success=f"inside:cube:tray:{HALF}",
        horizon=160,
    ),
    scene=Scene(
        objects=(CUBE, Tray("tray", HALF, 0.4, rgba=(0.75, 0.7, 0.65, 1.0))), cameras=LIFT.scene.cameras,
        places=((0.46, -0.11), (0.5, 0.11)),
    ),
    randomization=(
        *_around("cube"), *_around("tray"),
        Randomize("cube.mass", 0.03, 0.2, "log_uniform"),
        Randomize("cube.friction", 0.6, 1.4),
        *_SHARED,
    ),
    expert="sim.experts.manipulation:place",
)  # fmt: skip

STACK = replace(
    TASK,
    interface=replace(
        TASK.interface,
        task="panda-stack",
        instruction="stack the red cube on the blue cube",
        observations=(
            *_PROPRIOCEPTION, "object_position:cube", "object_to_tool:cube", "object_position:base",
            "object_to_object:cube:base", "last_action",
        ),
        success="stacked:cube:base:0.025",
    ),
    scene=replace(TASK.scene, objects=(CUBE, Box("base", 0.022, 0.15, rgba=(0.1, 0.25, 0.8, 1.0)))),
    randomization=(
        *_around("cube"), *_around("base"), *TASK.randomization[6:],
    ),
    expert="sim.experts.manipulation:stack",
)
