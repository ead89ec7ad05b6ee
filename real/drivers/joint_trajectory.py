"""Driver of an arm with ros2_control's joint_trajectory_controller: each command is a trajectory of one point."""

from torch import Tensor

from real.bus import Node, qos
from real.bus.layout import template
from real.drivers.driver import DriverParts
from real.drivers.joint_states import JointStates
from real.drivers.names import driver_names
from real.drivers.ros2_control import Ros2Commands
from real.drivers.ros2_gripper import Ros2Gripper
from real.drivers.state import StateReader
from robot_rl.interface.command import Command, JointPositions
from robot_rl.interface.driver import JointTrajectory
from robot_rl.interface.robot import RobotSpec

TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"


class JointTrajectories(Ros2Commands):
    """Publisher of trajectories, each of which replaces the one before. The last point is held forever."""

    accepts = (JointPositions,)

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        config = robot.driver
        assert isinstance(config, JointTrajectory)
        self.publishers = [node.publisher(TRAJECTORY, config.command, qos.COMMAND)]
        ahead = round(1e9 * config.ahead / robot.command_rate)
        sec, nanosec = divmod(ahead, 1_000_000_000)
        # No velocity: by default the controller refuses a trajectory that ends with one. No stamp: it starts now.
        point = {"positions": robot.home, "time_from_start": {"sec": sec, "nanosec": nanosec}}
        names = list(driver_names(node, robot)[: len(robot.joints)])
        self._layout = template(TRAJECTORY, joint_names=names, points=[point])

    def send(self, command: Command, rate: Tensor) -> None:
        self.publishers[0].publish(self._layout.write(**{"points.0.positions": command.values[0].numpy()}))


DRIVER = DriverParts(JointStates, JointTrajectories, Ros2Gripper)
