"""UR5e moves its flange to a target in the air: 20 Hz end-effector control, dense reward.

The target is an object without collisions. On the real robot, a tracker publishes its pose on objects/target/pose.
"""

from torch import Tensor

from robot_rl.interface.pipeline import Interface
from sim import rewards as r
from sim.objects import Box
from sim.randomization import Randomize
from sim.rewards import Reward, Transition
from sim.scenes import Camera, Scene
from sim.tasks.base import Task


def distance(m: Transition) -> Tensor:
    """Return the distance from the tool to the target, m."""
    return (m.now.objects["target"][:, :3] - m.now.tool_position).norm(dim=1)


def target_distance(m: Transition) -> Tensor:
    """Return a cost in [0, 1): 0 at the target, 0.76 at a distance of 10 cm."""
    return (distance(m) / 0.1).tanh()


TASK = Task(
    interface=Interface(
        task="ur5e-reach",
        robot="ur5e",
        instruction="reach the target",
        observations=(
            "joint_position", "tool_position", "object_position:target", "object_to_tool:target", "last_action",
        ),
        success="reached:target:0.02",
    ),
    scene=Scene(
        objects=(Box("target", size=0.02, mass=0.1, rgba=(0.15, 0.7, 0.25, 1.0), solid=False),),
        cameras=(Camera("front", position=(1.45, 0.0, 0.75), target=(0.35, 0.0, 0.25)),),
        timestep=0.002,  # the period of its joint commands
    ),
    randomization=(
        Randomize("target.x", 0.32, 0.63),
        Randomize("target.y", -0.28, 0.28),
        Randomize("target.z", 0.12, 0.43),
        Randomize("robot.stiffness_scale", 0.75, 1.3, "log_uniform"),
        Randomize("robot.damping_scale", 0.75, 1.3, "log_uniform"),
        Randomize("robot.joint_friction", 0.0, 2.0),
        Randomize("robot.action_delay", 0.002, 0.05),
        Randomize("robot.home_offset", 0.0, 0.05),
        Randomize("sensor.joint_noise", 0.0, 0.0005),
        Randomize("sensor.object_noise", 0.0, 0.002),
        Randomize("sensor.object_bias", 0.0, 0.005),
        Randomize("sensor.object_delay", 0.0, 0.05),
    ),
    expert="sim.experts.reach:ReachExpert",
    rewards=(Reward("target_distance", -1.0, target_distance), Reward("action_rate", -0.01, r.action_rate)),
    metrics=lambda m: {"distance": distance(m)},
)  # fmt: skip
