"""Unitree Go2 that has fallen gets up. It begins at any roll, with any posture, 20 cm above where it would stand.

All links collide with the ground, but not with each other. Rewards are negative until the robot stands, and success
ends the episode, as in the tasks of arms. Deviation from the other tasks of a Go2: a guard damps a robot that lies
down, so `deploy` does not run this policy on a robot or twin.
"""

import math
from dataclasses import replace

from torch import Tensor

from robot_rl.interface.control import JointOffsetConfig
from robot_rl.interface.observations import down
from robot_rl.interface.symmetry import Reflection, joined
from sim.randomization import Randomize
from sim.rewards import Reward, Transition
from sim.tasks import go2_flat, go2_velocity

_WALK, _MIRROR = go2_flat.TASK, go2_velocity.TASK.mirror
assert _MIRROR is not None
_HEIGHT = 0.32
"""Height of the trunk of a robot that stands, m."""


def tilted(m: Transition) -> Tensor:
    """Return how far the trunk is turned over: 0 upright, 1 upside down."""
    return (1 + down(m.now.base_quat)[:, 2]) / 2


def lying(m: Transition) -> Tensor:
    """Return the trunk's missing height as a share of that of a robot that stands, 0 to 1."""
    return (1 - m.now.base_height[:, 0] / _HEIGHT).clamp(0, 1)


def unsettled(m: Transition) -> Tensor:
    """Return the squared distance of the joints from the home posture, rad^2, of a robot that is nearly upright."""
    return (m.now.joint_position - m.home).square().sum(1) * (tilted(m) < 0.1)


_DROPPED = ("push.speed", "push.interval", "robot.home_offset")
_RANGES = (
    *(r for r in _WALK.randomization if r.parameter not in _DROPPED),
    Randomize("robot.home_offset", 0.0, 1.0),
    Randomize("start.roll", -math.pi, math.pi),
    Randomize("start.pitch", -0.5, 0.5),
    Randomize("start.height", 0.2, 0.2),
)
_KEPT = {"joint_torque": -1e-4, "joint_power": -5e-4, "joint_acc": -1e-7, "action_rate": -0.02}

TASK = replace(
    _WALK,
    interface=replace(
        _WALK.interface,
        task="go2-getup",
        instruction="get up",
        observations=tuple(name for name in _WALK.interface.observations if name != "command"),
        command=(),
        success=f"standing:15:{0.8 * _HEIGHT:g}",
        success_hold=50,
        failure="",
        horizon=250,
        controller=JointOffsetConfig(reach=1.2),
    ),
    scene=replace(_WALK.scene, collisions="all"),
    randomization=_RANGES,
    rewards=(
        Reward("tilted", -2.0, tilted),
        Reward("lying", -2.0, lying),
        Reward("unsettled", -0.5, unsettled),
        *(replace(term, weight=_KEPT[term.name]) for term in _WALK.rewards if term.name in _KEPT),
    ),
    commands=None,
    metrics=None,
    mirror=replace(
        _MIRROR,
        observation=joined(go2_velocity.PSEUDOVECTOR, go2_velocity.VECTOR, *(go2_velocity.JOINTS,) * 3),
        privileged=joined(
            go2_velocity.VECTOR,
            Reflection(range(1), (1,)),
            Reflection(go2_velocity.LEGS, (1, 1, 1, 1)),
            go2_velocity.drawn(_RANGES),
        ),
    ),
)
