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

PANDA = RobotSpec(
    name="panda",
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
