"""Drivers of arms behind a Cartesian controller: poses of the tool for an impedance controller such as CRISP's, and its
velocities for MoveIt Servo."""

from torch import Tensor

from real.bus import Node, qos
from real.bus.layout import template
from real.bus.stamps import stamped
from real.drivers.driver import DriverParts
from real.drivers.joint_states import JointStates
from real.drivers.names import frames
from real.drivers.ros2_control import Ros2Commands
from real.drivers.ros2_gripper import Ros2Gripper
from real.drivers.state import StateReader
from robot_rl.interface.command import Command, ToolPose, Twist
from robot_rl.interface.driver import ServoTwist, TargetPose
from robot_rl.interface.robot import RobotSpec

POSE, TWIST = "geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/TwistStamped"
_POSE = tuple(f"pose.{name}" for name in (
    "position.x", "position.y", "position.z", "orientation.w", "orientation.x", "orientation.y", "orientation.z",
))  # fmt: skip
_TWIST = tuple(f"twist.{part}.{axis}" for part in ("linear", "angular") for axis in "xyz")
"""Numbers of the messages, in the order of a command's values."""


class TargetPoses(Ros2Commands):
    """Publisher of poses of the tool. The controller pulls the tool to the last one forever."""

    accepts = (ToolPose,)

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        assert isinstance(robot.driver, TargetPose)
        self.publishers = [node.publisher(POSE, robot.driver.command, qos.COMMAND)]
        self._layout = template(POSE, header={"frame_id": frames(node, robot)[0]})

    def send(self, command: Command, rate: Tensor) -> None:
        pose = dict(zip(_POSE, command.values[0].tolist(), strict=True))
        self.publishers[0].publish(self._layout.write(**stamped(), **pose))


class ServoTwists(Ros2Commands):
    """Publisher of velocities of the tool. Servo takes a message without a new stamp as stale, and then halts."""

    accepts = (Twist,)

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        assert isinstance(robot.driver, ServoTwist)
        self.publishers = [node.publisher(TWIST, robot.driver.command, qos.COMMAND)]
        self._layout = template(TWIST, header={"frame_id": frames(node, robot)[0]})

    def send(self, command: Command, rate: Tensor) -> None:
        self._publish(command.values[0].tolist())

    def rest(self) -> None:
        self._publish([0.0] * len(_TWIST))

    def _publish(self, twist: list[float]) -> None:
        self.publishers[0].publish(self._layout.write(**stamped(), **dict(zip(_TWIST, twist, strict=True))))


TARGET_POSE = DriverParts(JointStates, TargetPoses, Ros2Gripper)
SERVO_TWIST = DriverParts(JointStates, ServoTwists, Ros2Gripper)
