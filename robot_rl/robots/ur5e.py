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


_SPHERES = (
    (
        (0.019, 0.033, 0.011, 0.053), (-0.011, -0.03, 0.004, 0.055), (-0.057, -0.005, 0.044, 0.056),
        (-0.038, 0.044, 0.046, 0.057), (0.03, -0.041, 0.045, 0.061), (0.051, 0.004, 0.05, 0.061),
        (-0.0, 0.0, 0.062, 0.071),
    ),
    (
        (-0.016, -0.011, 0.018, 0.069), (0.022, 0.038, 0.01, 0.07), (-0.022, 0.038, 0.008, 0.07),
        (0.018, -0.026, -0.09, 0.07), (0.021, -0.016, 0.019, 0.07), (-0.014, -0.017, -0.09, 0.072),
        (0.021, 0.035, -0.088, 0.064), (-0.021, 0.026, -0.089, 0.068),
    ),
    (
        (-0.0, 0.007, 0.099, 0.067), (-0.0, -0.002, 0.167, 0.068), (0.004, -0.079, 0.013, 0.083),
        (0.001, 0.015, 0.404, 0.085), (-0.003, -0.037, 0.409, 0.086), (-0.001, 0.002, 0.015, 0.087),
        (0.0, 0.005, 0.321, 0.066), (0.001, -0.0, 0.252, 0.065),
    ),
    (
        (0.0, -0.004, 0.049, 0.061), (-0.0, 0.006, 0.134, 0.063), (-0.002, -0.02, 0.364, 0.071),
        (-0.0, 0.123, 0.005, 0.072), (-0.001, 0.037, -0.005, 0.072), (0.002, 0.021, 0.363, 0.075),
        (0.001, 0.0, 0.273, 0.052), (0.0, -0.003, 0.211, 0.051),
    ),
    (
        (-0.001, 0.104, -0.021, 0.066), (0.001, 0.005, -0.007, 0.066), (0.001, 0.105, 0.025, 0.067),
    ),
    (
        (-0.001, -0.024, 0.069, 0.057), (-0.001, -0.009, 0.097, 0.058), (-0.002, 0.004, -0.001, 0.061),
        (-0.0, 0.044, 0.086, 0.063),
    ),
    (
        (0.0, 0.078, -0.0, 0.048),
    ),
)  # fmt: skip
"""By `robot-rl robots cover ur5e`."""
UR5E = RobotSpec(
    name="ur5e",
    spheres=_SPHERES,
    collision_pairs=((1, 3), (1, 4), (1, 5), (1, 6), (2, 4), (2, 5), (2, 6), (3, 6)),
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
