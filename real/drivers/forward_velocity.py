"""Driver of an arm with ros2_control's forward_velocity_controller, which keeps the last velocities forever."""

from real.drivers.commands import GripperWidth, JointVelocities
from real.drivers.driver import DriverParts
from real.drivers.joint_states import JointStates

DRIVER = DriverParts(JointStates, JointVelocities, GripperWidth)
