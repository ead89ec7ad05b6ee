"""Franka Research 3 with its hand.

Source of all limits: the section "Limits for Franka Research 3" of the Franka Control Interface documentation, and
libfranka's rate_limiting.h for the taper of the speeds. Geometry: that of the Panda, whose kinematics the FR3 shares
(the same table of Denavit-Hartenberg parameters). The model file is the Panda's too: masses in simulation are its, and
the position limits are narrowed to it.
"""

from dataclasses import replace

from robot_rl.interface.driver import FrankaControl
from robot_rl.interface.robot import Joint, SpeedTaper
from robot_rl.robots.panda import PANDA

_LIMITS = (
    # low, high, rad; speed, rad/s; torque, N m; taper: low, high, rad; slope, rad/s^2; offset, rad/s
    (-2.7437, 2.7437, 2.62, 87.0, (-2.75010, 2.75010, 12.0, 0.30)),
    (-1.7837, 1.7837, 2.62, 87.0, (-1.79180, 1.79180, 5.17, 0.20)),
    (-2.9007, 2.9007, 2.62, 87.0, (-2.90650, 2.90650, 7.0, 0.20)),
    (-3.0421, -0.1518, 2.62, 87.0, (-3.04810, -0.14580, 8.0, 0.30)),
    (-2.8065, 2.8065, 5.26, 12.0, (-2.81010, 2.81010, 34.0, 0.35)),
    (0.5445, 4.5169, 4.18, 12.0, (0.54092, 4.52050, 11.0, 0.35)),
    (-3.0159, 3.0159, 5.26, 12.0, (-3.01960, 3.01960, 34.0, 0.35)),
)


def _joint(joint: Joint, limits: tuple[float, float, float, float, tuple[float, float, float, float]]) -> Joint:
    low, high, speed, torque, taper = limits
    return replace(
        joint, low=max(low, joint.low), high=min(high, joint.high), velocity=speed, acceleration=10.0, jerk=5000.0,
        effort=torque, taper=SpeedTaper(*taper),
    )  # fmt: skip


FR3 = replace(
    PANDA,
    name="fr3",
    collision_pairs=((0, 5), (0, 6), (0, 7), (1, 5), (1, 6), (1, 7), (2, 5), (2, 6), (2, 7)),
    joints=tuple(_joint(joint, limits) for joint, limits in zip(PANDA.joints, _LIMITS, strict=True)),
    state_rate=100.0,
    command_rate=100.0,
    driver=FrankaControl(base_frames=("base", "fr3_link0", "link0")),
)
