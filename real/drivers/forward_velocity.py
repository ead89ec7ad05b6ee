"""Driver of an arm with ros2_control's forward_velocity_controller, which keeps the last velocities forever."""

from real.drivers.commands import JointVelocities
from real.drivers.driver import DriverParts
from real.drivers.joint_states import JointStates
from real.drivers.ros2_control import Ros2Commands
from real.drivers.ros2_gripper import Ros2Gripper


class ForwardVelocities(Ros2Commands, JointVelocities):
    """Publisher of joint velocities for a forward_velocity_controller."""


DRIVER = DriverParts(JointStates, ForwardVelocities, Ros2Gripper)
