"""Unitree Go2 tracks velocity commands on flat ground without a scripted gait: it has to discover how to walk.

Differences from go2-velocity: actions are offsets from the home posture alone, the policy has no gait clock, and
a reward for long steps replaces that for the clock's trot (`feet_air_time` of Rudin et al. 2022).
"""

from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.interface.control import JointOffsetConfig
from robot_rl.interface.symmetry import Reflection, joined
from sim import rewards as r
from sim.rewards import Reward, Transition
from sim.tasks import go2_velocity as trot

_TROT = trot.TASK
assert _TROT.mirror is not None


def progress(m: Transition) -> Tensor:
    """Return the speed in the commanded direction, at most the commanded speed, m/s: unlike `track_lin_vel_xy`, its
    slope is the same for a robot that stands."""
    return torch.minimum(r.speed_along_command(m), r.command_speed(m))


_WEIGHTS = {"feet_slip": -0.2, "feet_clearance": -0.1, "action_rate": -0.01, "lin_vel_z": -0.5, "alive": 0.4}
"""Weights of reward terms that a robot which does not walk yet would lower most by standing still."""
TASK = replace(
    _TROT,
    expert="sim.experts.trot:TrotExpert",
    interface=replace(
        _TROT.interface,
        task="go2-flat",
        observations=tuple(name for name in _TROT.interface.observations if name != "gait_clock"),
        gait=0.0,
        controller=JointOffsetConfig(),
    ),
    rewards=(
        *(replace(t, weight=_WEIGHTS.get(t.name, t.weight)) for t in _TROT.rewards if t.name != "trot_gait"),
        Reward("feet_air_time", 1.0, r.feet_air_time),
        Reward("progress", 3.0, progress),
    ),
    mirror=replace(
        _TROT.mirror,
        observation=joined(
            trot.PSEUDOVECTOR, trot.VECTOR, Reflection(range(3), (1, -1, -1)), *(trot.JOINTS,) * 3
        ),
    ),
)
