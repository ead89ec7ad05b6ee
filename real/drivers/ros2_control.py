"""Commands to a controller of ros2_control: not before it is active and the robot obeys, and no longer than that."""

from real.bus import Node
from real.drivers.commands import Commands
from real.drivers.controllers import Controllers
from real.drivers.robot_status import RobotStatus
from real.drivers.state import StateReader
from real.drivers.wrench import Wrench
from robot_rl.interface.driver import Ros2Control
from robot_rl.interface.robot import RobotSpec


class Ros2Commands(Commands):
    """Publisher of commands to one controller. What is checked is data: fields of the driver's config."""

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        config = robot.driver
        assert isinstance(config, Ros2Control)
        needed = config.controllers
        self.controllers = Controllers(node, config.controller_manager, needed) if needed else None
        reports = config.robot_program or config.safety_mode or config.speed_scaling
        self.status = RobotStatus(node, config) if reports else None
        self.wrench = Wrench(node, config, state) if config.wrench else None
        parts = (self.controllers, self.status, self.wrench)
        self.reports = [subscription for part in parts if part for subscription in part.subscriptions]

    def objection(self, now: float) -> str:
        """Return which controller is not active, why the robot does not obey, or what presses on its tool."""
        fault = self.controllers.fault if self.controllers else ""
        fault = fault or (self.status.fault if self.status else "")
        return fault or (self.wrench.fault(now) if self.wrench else "")

    def watch(self) -> None:
        if self.controllers:
            self.controllers.poll()
        if self.status:
            self.status.report()

    def wait_executor(self, timeout: float) -> None:
        if self.controllers:
            self.controllers.wait(timeout)
        if self.status:
            self.status.wait(timeout)
        if self.wrench:
            self.wrench.wait(timeout)
