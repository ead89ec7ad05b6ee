"""SO-101 moves its tool to a target in the air: the task `ur5e-reach` for an arm of five joints."""

from dataclasses import replace

from robot_rl.interface.control import ToolDeltaConfig
from sim.randomization import Randomize
from sim.scenes import Camera, Scene
from sim.tasks.ur5e_reach import TASK as UR5E_REACH

TASK = replace(
    UR5E_REACH,
    interface=replace(
        UR5E_REACH.interface,
        task="so101-reach",
        robot="so101",
        # Five joints cannot keep the tool's orientation at every position.
        controller=ToolDeltaConfig(step=0.02, orientation="free", damping=0.02),
    ),
    scene=Scene(
        objects=UR5E_REACH.scene.objects,
        cameras=(Camera("front", position=(0.75, 0.0, 0.4), target=(0.18, 0.0, 0.12)),),
        timestep=1 / 240,  # a quarter of the period of its joint commands
    ),
    randomization=(
        Randomize("target.x", 0.17, 0.28),
        Randomize("target.y", -0.13, 0.13),
        Randomize("target.z", 0.04, 0.18),
        Randomize("robot.stiffness_scale", 0.5, 2.0, "log_uniform"),
        Randomize("robot.damping_scale", 0.7, 1.4, "log_uniform"),
        Randomize("robot.joint_friction", 0.0, 0.1),
        Randomize("robot.action_delay", 0.01, 0.06),
        Randomize("robot.home_offset", 0.0, 0.05),
        Randomize("sensor.joint_noise", 0.0, 0.002),  # a tick of the encoder is 0.0015
        Randomize("sensor.object_noise", 0.0, 0.002),
        Randomize("sensor.object_bias", 0.0, 0.005),
        Randomize("sensor.object_delay", 0.0, 0.05),
    ),
)
