"""Universal Robots UR5e with a bare flange.

Source of position, speed and torque limits: the manufacturer's ROS 2 description (config/ur5e/joint_limits.yaml of
ur_description, which cites the e-Series user manual and the list of maximum joint torques). The elbow is limited to
+-180 of its +-360 degrees because the upper arm blocks the rest. Acceleration: no published limit; 180 deg/s^2 is the
value for planners in the same file. Geometry: the MuJoCo Menagerie model in genesis-world, in whole millimetres (a test
compares it with the manufacturer's); real arms have their own calibration. ROS names and command rate:
forward_position_controller of ur_robot_driver, at 500 Hz on an e-Series.
"""

import math

from robot_rl.interface.driver import ForwardPosition
from robot_rl.interface.robot import Joint, RobotSpec, Tool

_S = math.sqrt(0.5)
_ABOUT_Y = (_S, 0.0, _S, 0.0)
_Y = (0.0, 1.0, 0.0)
_TURN = 2 * math.pi


def _joint(
    name: str,
    effort: float,
    position: tuple[float, float, float],
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0),
    axis: tuple[float, float, float] = _Y,
    limit: float = _TURN,
) -> Joint:
    speed = acceleration = math.pi
    return Joint(f"{name}_joint", -limit, limit, speed, acceleration, effort, position, quat, axis, model_name=name)


UR5E = RobotSpec(
    name="ur5e",
    joints=(
        _joint("shoulder_pan", 150.0, (0.0, 0.0, 0.163), axis=(0.0, 0.0, 1.0)),
        _joint("shoulder_lift", 150.0, (0.0, 0.138, 0.0), _ABOUT_Y),
        _joint("elbow", 150.0, (0.0, -0.131, 0.425), limit=math.pi),
        _joint("wrist_1", 28.0, (0.0, 0.0, 0.392), _ABOUT_Y),
        _joint("wrist_2", 28.0, (0.0, 0.127, 0.0), axis=(0.0, 0.0, 1.0)),
        _joint("wrist_3", 28.0, (0.0, 0.0, 0.1)),
    ),
    # Flange pointing down, 0.30 m above the table and 0.48 m in front of the base.
    home=(-0.2829, -1.5314, 2.0306, -2.07, -1.5708, -0.2829),
    tool=Tool(
        "tool0",
        position=(0.0, 0.1, 0.0),
        quat=(_S, -_S, 0.0, 0.0),  # z points out of the flange
        # Reachable with the flange pointing down, and far from stretched or folded postures.
        workspace=((0.30, -0.30, 0.10), (0.65, 0.30, 0.45)),
    ),
    model="xml/universal_robots_ur5e/ur5e.xml",
    state_rate=500.0,
    command_rate=500.0,
    # Not its frame "base", which is rotated by 180 degrees about z.
    driver=ForwardPosition(base_frames=("base_link",)),
)
