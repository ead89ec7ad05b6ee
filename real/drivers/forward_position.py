"""Driver of an arm with ros2_control's topics: joint states in, a stream of joint positions and gripper widths out."""

from torch import Tensor

from real.bus import Node, qos
from real.bus.layout import template
from real.drivers.commands import ARRAY
from real.drivers.driver import DriverParts
from real.drivers.joint_states import JointStates
from real.drivers.ros2_control import Ros2Commands
from real.drivers.ros2_gripper import Ros2Gripper
from real.drivers.state import StateReader
from robot_rl.interface.command import Command, JointPositions
from robot_rl.interface.driver import ForwardPosition
from robot_rl.interface.robot import RobotSpec


class ForwardPositions(Ros2Commands):
    """Publisher of joint positions for a forward_position_controller, which keeps the last one forever."""

    accepts = (JointPositions,)

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        assert isinstance(robot.driver, ForwardPosition)
        self.publishers = [node.publisher(ARRAY, robot.driver.command, qos.COMMAND)]
        self._layout = template(ARRAY, data=robot.home)

    def send(self, command: Command, rate: Tensor) -> None:
        self.publishers[0].publish(self._layout.write(data=command.values[0].numpy()))


DRIVER = DriverParts(JointStates, ForwardPositions, Ros2Gripper, twin="real.twin.arm:ArmTwin")
