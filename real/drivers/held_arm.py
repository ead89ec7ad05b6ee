"""Driver of an arm that `robot-rl robot` alone holds: its topics, and its reports."""

from real import clock
from real.bus import Node, Stamped, make, qos
from real.drivers.commands import GripperWidth
from real.drivers.driver import DriverParts
from real.drivers.forward_position import ForwardPositions
from real.drivers.joint_states import JointStates
from real.drivers.lowlevel import REPORT
from real.drivers.state import NotReady, StateReader
from real.topics import GUARD_TOPIC, INT, RECOVER_TOPIC, STATUS, GuardReport
from robot_rl.interface.driver import HeldArm
from robot_rl.interface.robot import RobotSpec

GONE = 0.3
"""Age of the last report above which the robot's process counts as gone, s. It reports every 0.02 s."""


class HeldPositions(ForwardPositions):
    """Publisher of joint positions for the robot's process, which brakes and holds when they stop."""

    recovery = 3.0  # as a Franka's own recovery takes a while; the time is ours

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        self._report, self._raw, self._heard, self._recoveries = GuardReport(), b"", -float("inf"), 0
        self.robot_process = node.subscribe(STATUS, GUARD_TOPIC, REPORT, self._on_report)
        self.reports = [self.robot_process]
        self._recover = node.publisher(INT, RECOVER_TOPIC, qos.DEFAULT)

    def _on_report(self, sample: Stamped) -> None:
        if sample.raw != self._raw:
            self._raw, self._report = bytes(sample.raw), GuardReport.of(sample.msg)
        self._heard = sample.received

    def objection(self, now: float) -> str:
        """Return the latched stop of the robot's process, or that the process is gone; empty if it follows goals."""
        if self._gone(now):
            return "the robot's process has gone"
        return f"the robot stopped: {self._report.damping}" if self._report.latched else super().objection(now)

    def _gone(self, now: float) -> bool:
        return now - self._heard > GONE

    def recover(self) -> None:
        self._recoveries += 1
        self._recover.publish(make(INT, data=self._recoveries))

    def wait_ready(self, timeout: float) -> None:
        """Wait for the robot's process. A latched stop is then the command loop's, until the operator resets it."""
        if not self.robot_process.wait(timeout, after=0) or self._gone(clock.now()):
            raise NotReady(f"nothing arrives on {self.robot_process.topic}; {self.executor(self.publishers[0].topic)}")

    def executor(self, topic: str) -> str:
        assert isinstance(self.robot.driver, HeldArm)
        command = f"robot-rl robot {self.robot.name} {self.robot.driver.reached_by}"
        return f"start the process that holds the robot: {command}"


DRIVER = DriverParts(JointStates, HeldPositions, GripperWidth, twin="real.twin.held_arm:HeldTwin")
