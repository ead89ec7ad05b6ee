"""Franka Panda lifts a cube from the table: 20 Hz end-effector control, sparse reward."""

from robot_rl.interface.pipeline import Interface
from sim.objects import Box
from sim.randomization import Randomize
from sim.scenes import Camera, Scene
from sim.tasks.base import Task

TASK = Task(
    interface=Interface(
        task="panda-lift",
        robot="panda",
        instruction="lift the cube",
        observations=(
            "joint_position", "tool_position", "gripper_width", "object_position:cube", "object_to_tool:cube",
            "last_action",
        ),
        success="lifted:cube:0.12",
    ),
    scene=Scene(
        objects=(Box("cube", size=0.022, mass=0.1),),
        cameras=(Camera("front", position=(1.15, 0.0, 0.55), target=(0.45, 0.0, 0.1)),),
    ),
    randomization=(
        Randomize("cube.x", 0.36, 0.62),
        Randomize("cube.y", -0.22, 0.22),
        Randomize("cube.yaw", -0.35, 0.35),
        Randomize("cube.size", 0.018, 0.026, optional=True),
        Randomize("cube.mass", 0.03, 0.3, "log_uniform"),
        Randomize("cube.friction", 0.6, 1.4),
        Randomize("robot.stiffness_scale", 0.75, 1.3, "log_uniform"),
        Randomize("robot.damping_scale", 0.75, 1.3, "log_uniform"),
        Randomize("robot.joint_friction", 0.0, 0.5),
        Randomize("robot.action_delay", 0.005, 0.05),
        Randomize("robot.home_offset", 0.0, 0.05),
        Randomize("sensor.joint_noise", 0.0, 0.0005),
        Randomize("sensor.object_noise", 0.0, 0.002),
        Randomize("sensor.object_bias", 0.0, 0.005),
        Randomize("sensor.object_delay", 0.0, 0.05),
    ),
    expert="sim.experts.lift:LiftExpert",
)  # fmt: skip
