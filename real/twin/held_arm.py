"""Twin of an arm behind `robot-rl robot`: it also reports, as the robot's process does, whether it follows goals."""

import math
from typing import Any

from real import clock
from real.bus import Node
from real.drivers.lowlevel import GUARD_RATE, REPORT
from real.topics import GUARD_TOPIC, STATUS, GuardReport
from real.twin.arm import ArmTwin
from robot_rl.interface.driver import HeldArm
from sim.tasks.base import Task


class HeldTwin(ArmTwin):
    """Simulated arm that holds its position when goals stop."""

    def __init__(self, node: Node, task: Task, **options: Any):
        self._report = GuardReport("no goals")
        self.reports = node.publisher(STATUS, GUARD_TOPIC, REPORT)
        super().__init__(node, task, **options)

    def publish(self, count: int) -> None:
        super().publish(count)
        config, newest = self.robot.driver, self.command.latest
        assert isinstance(config, HeldArm)
        age = clock.now() - newest.received if newest else math.inf
        report = GuardReport("" if age <= config.goal_timeout else "no goals")
        if report != self._report or count % round(self.robot.command_rate / GUARD_RATE) == 0:
            self._report = report
            self.reports.publish(report.message())
