"""Franka Emika Panda with its hand.

Sources: the table "Panda limits" of the Franka Control Interface documentation for position, velocity, acceleration and
torque limits, and the MuJoCo Menagerie model in genesis-world for the geometry (compared in a test).
"""

import math

from robot_rl.interface.driver import ForwardPosition
from robot_rl.interface.robot import Gripper, Joint, RobotSpec, Tool

_S = math.sqrt(0.5)
_ABOUT_X = (_S, _S, 0.0, 0.0)
_ABOUT_MINUS_X = (_S, -_S, 0.0, 0.0)

_SPHERES = (
    (
        (-0.107, -0.024, 0.028, 0.06), (-0.001, -0.016, 0.093, 0.077), (0.009, -0.035, 0.034, 0.078),
        (-0.064, -0.042, 0.064, 0.081), (0.002, 0.009, 0.082, 0.083), (-0.089, 0.033, 0.045, 0.085),
        (-0.025, 0.052, 0.044, 0.069), (0.035, 0.041, 0.026, 0.059),
    ),
    (
        (-0.002, -0.072, -0.0, 0.061), (0.002, -0.063, -0.047, 0.066), (-0.004, -0.006, -0.096, 0.068),
        (0.002, -0.034, -0.117, 0.069), (-0.0, 0.0, -0.15, 0.071), (0.02, -0.023, -0.011, 0.074),
        (-0.032, -0.012, -0.031, 0.055), (-0.013, -0.028, 0.024, 0.051),
    ),
    (
        (0.001, -0.001, 0.074, 0.06), (-0.003, -0.049, 0.062, 0.067), (-0.001, -0.091, 0.015, 0.068),
        (-0.004, -0.12, 0.04, 0.069), (0.022, -0.01, 0.024, 0.071), (0.0, -0.145, 0.0, 0.076),
        (-0.034, -0.026, 0.015, 0.054), (-0.006, 0.029, 0.034, 0.057),
    ),
    (
        (0.086, 0.059, -0.003, 0.062), (0.033, 0.003, -0.085, 0.067), (0.07, 0.064, -0.042, 0.067),
        (0.078, 0.015, -0.007, 0.067), (0.039, 0.056, -0.002, 0.07), (0.002, 0.008, -0.09, 0.072),
        (0.007, 0.001, -0.032, 0.062), (0.057, -0.029, -0.046, 0.043),
    ),
    (
        (0.0, -0.004, 0.059, 0.061), (-0.005, 0.005, 0.011, 0.066), (-0.049, 0.002, 0.053, 0.066),
        (-0.047, 0.094, 0.005, 0.068), (-0.009, 0.041, 0.06, 0.069), (-0.081, 0.096, 0.01, 0.072),
        (-0.032, 0.062, -0.028, 0.049), (-0.076, 0.038, 0.002, 0.063),
    ),
    (
        (-0.004, 0.081, -0.07, 0.066), (0.001, 0.002, -0.228, 0.067), (-0.001, 0.064, -0.172, 0.068),
        (0.0, 0.064, 0.0, 0.07),
    ),
    (
        (0.097, -0.012, -0.005, 0.059), (0.067, 0.044, -0.0, 0.066), (0.058, -0.04, 0.006, 0.066),
        (0.008, 0.002, 0.018, 0.067),
    ),
    (
        (-0.003, -0.003, 0.075, 0.053), (0.031, 0.031, 0.075, 0.056), (-0.046, -0.051, 0.105, 0.038),
        (0.012, 0.014, 0.153, 0.041), (-0.027, -0.026, 0.149, 0.041), (-0.012, -0.014, 0.115, 0.041),
        (-0.061, -0.06, 0.137, 0.043), (0.022, 0.021, 0.114, 0.044), (0.054, 0.053, 0.119, 0.036),
        (0.049, 0.049, 0.155, 0.039), (0.033, 0.033, 0.188, 0.034), (0.014, 0.014, 0.193, 0.036),
        (-0.033, -0.033, 0.189, 0.034), (-0.014, -0.014, 0.193, 0.035),
    ),
)  # fmt: skip
"""By `robot-rl robots cover panda`."""
PANDA = RobotSpec(
    name="panda",
    spheres=_SPHERES,
    collision_pairs=((0, 5), (0, 6), (0, 7), (1, 5), (1, 6), (1, 7), (2, 5), (2, 6), (2, 7)),
    joints=(
        Joint("joint1", -2.8973, 2.8973, 2.175, 15.0, 87.0, (0.0, 0.0, 0.333)),
        Joint("joint2", -1.7628, 1.7628, 2.175, 7.5, 87.0, quat=_ABOUT_MINUS_X),
        Joint("joint3", -2.8973, 2.8973, 2.175, 10.0, 87.0, (0.0, -0.316, 0.0), _ABOUT_X),
        Joint("joint4", -3.0718, -0.0698, 2.175, 12.5, 87.0, (0.0825, 0.0, 0.0), _ABOUT_X),
        Joint("joint5", -2.8973, 2.8973, 2.61, 15.0, 12.0, (-0.0825, 0.384, 0.0), _ABOUT_MINUS_X),
        Joint("joint6", -0.0175, 3.7525, 2.61, 20.0, 12.0, quat=_ABOUT_X),
        Joint("joint7", -2.8973, 2.8973, 2.61, 20.0, 12.0, (0.088, 0.0, 0.0), _ABOUT_X),
    ),
    # Hand pointing down, tool 0.25 m above the table and 0.45 m in front of the base.
    home=(0.0, -0.18483, 0.0, -2.4967, 0.0, 2.3119, 0.7854),
    tool=Tool(
        "panda_tool",
        # The hand is 0.107 m along the flange and rotated by -45 degrees; the finger pads are 0.1034 m farther.
        position=(0.0, 0.0, 0.107 + 0.1034),
        quat=(0.9238795, 0.0, 0.0, -0.3826834),
        workspace=((0.28, -0.30, 0.005), (0.70, 0.30, 0.45)),
    ),
    gripper=Gripper(
        ("finger_joint1", "finger_joint2"),
        width=0.08,
        force=40.0,
        # With the model file's gains, a tenth of these, the fingers press a 4 cm cube with only 2 N.
        stiffness=1000.0,
        damping=100.0,
        armature=0.3,  # of the geared motor; the fingers alone have 15 g, with which contacts are soft
    ),
    model="xml/franka_emika_panda/panda.xml",
    collision_bodies=("hand", "left_finger", "right_finger"),
    cameras=("front", "wrist"),
    # Not base_link, which may be the frame of a mobile platform.
    driver=ForwardPosition(base_frames=("base", "link0", "panda_link0")),
)
