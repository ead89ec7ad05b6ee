"""Gripper of an arm behind ros2_control: a topic or an action, in the unit that its driver takes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from real.bus import BusError, Node, make, qos
from real.bus.layout import template
from real.drivers.commands import ARRAY, GripperCommands
from real.drivers.state import NotReady
from robot_rl.interface.command import GripperCommand
from robot_rl.interface.driver import Ros2Control
from robot_rl.interface.robot import RobotSpec

ACTION = "control_msgs/action/GripperCommand"
SAME = 0.001
"""Change of the width that is no new goal of an action, m: each goal interrupts the one before."""
ANSWER = 2.0
"""Maximum time in which an action's server accepts a goal, s."""
RETRY = 1.0
"""Time after which a goal that was not accepted is sent again, s."""


class Ros2Gripper(GripperCommands):
    """Sender of the gripper's commands."""

    def __init__(self, node: Node, robot: RobotSpec):
        super().__init__(node, robot)
        config = robot.driver
        assert isinstance(config, Ros2Control) and robot.gripper is not None
        self._node = node
        self._scale = {"width": 1.0, "finger": 0.5, "open_fraction": 1 / robot.gripper.width}[config.gripper_unit]
        self._wanted: GripperCommand | None = None
        self._sent: GripperCommand | None = None
        """Newest command, and that of the last goal."""
        self._client = node.action_client(ACTION, config.gripper_action) if config.gripper_action else None
        if self._client is None:
            self.publishers = [node.publisher(ARRAY, config.gripper_command, qos.COMMAND)]
            self._layout = template(ARRAY, data=[0.0])
            return
        self._thread = ThreadPoolExecutor(1, "gripper")  # the command thread must not wait for an answer
        self._thread.submit(int)  # starts it

    def wait_ready(self, timeout: float) -> None:
        """Wait for the action's server."""
        if self._client is None:
            return
        try:
            found = self._client.wait(timeout)
        except BusError as error:
            raise NotReady(str(error)) from None
        if not found:
            raise NotReady(
                f"no server of the gripper's action {self._client.name}: start the gripper's driver, or correct "
                "`gripper_action` of the profile (`ros2 action list`)"
            )

    def send(self, command: GripperCommand) -> None:
        if self._client is None:
            self.publishers[0].publish(self._layout.write(data=[self._scale * command.width]))
        elif self._wanted is None or _differ(command, self._wanted):
            self._wanted = command
            self._thread.submit(self._pursue)

    def _pursue(self) -> None:
        """Send the newest command as a goal, unless the last goal was the same."""
        command = self._wanted
        if command is None or self._client is None or (self._sent is not None and not _differ(command, self._sent)):
            return
        goal = {"position": self._scale * command.width, "max_effort": command.force}
        try:
            accepted = self._client.send_goal(make(f"{ACTION}_Goal", command=goal), timeout=ANSWER).accepted
        except BusError as error:
            self._fail(str(error))
            return
        if accepted:
            self._sent = command
        else:
            self._fail(f"the gripper has rejected {goal} on {self._client.name}; read its log")

    def _fail(self, reason: str) -> None:
        self._node.log("error", f"the gripper was not moved: {reason}")
        time.sleep(RETRY)
        self._wanted = None  # the next command tries again


def _differ(one: GripperCommand, other: GripperCommand) -> bool:
    return one.action != other.action or abs(one.width - other.width) > SAME
