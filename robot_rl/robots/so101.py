"""SO-101 follower arm of TheRobotStudio and LeRobot.

Sources: so101_new_calib.urdf of TheRobotStudio/SO-ARM100 for geometry and position limits. Its zeros are in the middle
of the joints' ranges, as LeRobot's degrees are. Feetech's data sheet of the STS3215 for 7.4 V: 1.9 N m, and 4.7 rad/s
without a load, of which half is used. Acceleration: none is published.
"""

import math

from robot_rl.interface.driver import LeRobotControl, SafetyConfig
from robot_rl.interface.robot import Gripper, Joint, RobotSpec, Tool

_S = math.sqrt(0.5)


def _joint(
    name: str, low: float, high: float, position: tuple[float, float, float], quat: tuple[float, float, float, float]
) -> Joint:
    return Joint(name, low, high, velocity=2.4, acceleration=15.0, effort=1.9, position=position, quat=quat)


SO101 = RobotSpec(
    name="so101",
    joints=(
        _joint("shoulder_pan", -1.91986, 1.91986, (0.0388353, 0.0, 0.0624), (0.0, 0.0, 1.0, 0.0)),
        _joint("shoulder_lift", -1.74533, 1.74533, (-0.0303992, -0.0182778, -0.0542), (0.5, -0.5, -0.5, -0.5)),
        _joint("elbow_flex", -1.69, 1.69, (-0.11257, -0.028, 0.0), (_S, 0.0, 0.0, _S)),
        _joint("wrist_flex", -1.65806, 1.65806, (-0.1349, 0.0052, 0.0), (_S, 0.0, 0.0, -_S)),
        _joint("wrist_roll", -2.74385, 2.84121, (0.0, -0.0611, 0.0181), (0.0172091, -0.0172091, 0.706897, 0.706897)),
    ),
    # Tool 0.12 m above the table, 0.22 m in front of the base, and 57 degrees down.
    home=(0.0, -0.76, 0.492, 1.268, 0.0487),
    tool=Tool(
        "gripperframe",  # between the tips of the closed jaws; x points out
        position=(-0.0079, -0.000218, -0.0981274),
        quat=(_S, 0.0, _S, 0.0),
        workspace=((0.15, -0.15, 0.02), (0.30, 0.15, 0.20)),
    ),
    gripper=Gripper(("gripper",), width=0.13, force=15.0),
    model="models/so101.xml",
    collision_bodies=("gripper", "moving_jaw"),
    cameras=("front", "wrist"),
    state_rate=60.0,
    command_rate=60.0,
    driver=LeRobotControl(type="so101_follower", safety=SafetyConfig(state_timeout=0.15)),
)
