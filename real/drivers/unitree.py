"""Driver of a robot with Unitree's low-level messages: it receives LowState and sends LowCmd through the guard."""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Stamped, qos
from real.drivers.commands import Commands
from real.drivers.driver import DriverParts
from real.drivers.lowlevel import REPORT, Motors
from real.drivers.state import JointReading, NotReady, StateReader
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
from real.topics import GUARD_TOPIC, STATUS, GuardReport
from robot_rl.interface.command import Command, JointPositions
from robot_rl.interface.driver import UnitreeLowLevel, UnitreeRobot
from robot_rl.interface.robot import RobotSpec


@dataclass(frozen=True)
class TrunkReading(JointReading):
    """One LowState; joints and feet in the spec's order."""

    quat: np.ndarray
    """Orientation of the trunk in the world, (4,) w x y z."""
    gyroscope: np.ndarray
    """Angular velocity of the trunk, (3,) rad/s, trunk frame."""
    foot_force: np.ndarray
    """Contact force of each foot, (F,), in the sensor's unit, which is about 1 N on a Go2."""

    @property
    def upright(self) -> float:
        _, x, y, _ = self.quat
        return float(1 - 2 * (x * x + y * y))


GUARD_TIMEOUT = 0.3
"""Age of the guard's last report above which the guard counts as gone, s. The guard reports every 0.02 s."""
GUARD_GONE = "the guard has gone"


class LowState(StateReader):
    """Reader of LowState. Joints are matched through the spec's order of the motors."""

    def __init__(self, node: Node, robot: RobotSpec, realtime: bool = True):
        super().__init__(node, robot, realtime)
        config = robot.driver
        assert isinstance(config, UnitreeRobot) and robot.base is not None
        self.motors = Motors(robot)
        self._foot = np.array([config.feet.index(name) for name in robot.base.feet])
        self._latest: TrunkReading | None = None
        self._tick = -1
        """Tick counter of the latest state, ms."""
        self._state = layout(LOW_STATE)
        self.joints = node.subscribe(LOW_STATE, config.low_state, qos.SENSOR, self._on_state)

    def _on_state(self, sample: Stamped) -> None:
        self.raise_priority_once()
        message = self._state.open(sample.raw)
        if message is None:
            self.rejected += 1
            return
        if message["tick"] == self._tick:  # a robot that hangs may repeat its state
            self.repeated += 1
            return
        motors, imu = message["motor_state"], message["imu_state"]
        position, velocity = (motors[name][self.motors.motor].astype(float) for name in ("q", "dq"))
        quat, gyroscope = imu["quaternion"].astype(float), imu["gyroscope"].astype(float)
        norm = math.hypot(*quat)
        # An IMU that is still starting reports a quaternion of zeros. The sum is not finite if any of them is not.
        if not (0.9 < norm < 1.1 and math.isfinite(position.sum() + velocity.sum() + gyroscope.sum())):
            self.rejected += 1
            return
        before = self._latest
        if before is not None:
            moved, since = position - before.position, sample.received - before.received
            if self.jumps.refuses(moved, since, sample.received, slice(None)):
                return
        self._tick = int(message["tick"])
        force = message["foot_force"][self._foot].astype(float)
        self._latest = TrunkReading(position, velocity, 0.0, sample.received, quat / norm, gyroscope, force)
        self.accepted(message, sample.received)

    def accepted(self, message: np.ndarray, now: float) -> None:
        """Take note of a LowState that was accepted at `now`, s; called by the reader's thread."""

    def reading(self) -> TrunkReading | None:
        """Return the latest state, None before the first."""
        return self._latest

    def views(self, reading: JointReading) -> dict[str, Tensor]:
        assert isinstance(reading, TrunkReading)
        views = {"base_quat": reading.quat, "base_angular_velocity": reading.gyroscope}
        views["foot_force"] = reading.foot_force
        return {name: torch.from_numpy(values).float()[None] for name, values in views.items()}

    def missing(self) -> list[str]:
        if self._latest is not None:
            return []
        bad = f" ({self.rejected} were damaged)" if self.rejected else ""
        return [f"state of {self.robot.name} on {self.joints.topic}{bad}"]


class LowCommands(Commands):
    """Publisher of set-points of the motors' springs. They go to the guard, not to the motors, because motors follow
    the last command of a dead process forever."""

    accepts = (JointPositions,)

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        assert isinstance(robot.driver, UnitreeLowLevel)
        self.motors = Motors(robot)
        self.stiffness_scale = 1.0
        """Multiple of the spec's stiffness in commands."""
        self._sent: tuple[bytes, float, bytes] = (b"", 0.0, b"")
        """Set-points, stiffness and message of the last command. Most commands repeat it and need no new encoding."""
        self._command = layout(LOW_COMMAND)
        self._damping = self._command.seal(self.motors.damp())
        self._guard = GuardReport()
        """Newest report of the guard."""
        self._guard_raw, self._guard_heard = b"", -float("inf")
        self._damped_before: Counter[str] = Counter()
        self.guard = node.subscribe(STATUS, GUARD_TOPIC, REPORT, self._on_guard)
        self.reports = [self.guard]
        self.publishers = [node.publisher(LOW_COMMAND, robot.driver.wanted_command, qos.COMMAND)]

    def _on_guard(self, sample: Stamped) -> None:
        if sample.raw != self._guard_raw:
            self._guard_raw, self._guard = bytes(sample.raw), GuardReport.of(sample.msg)
        self._guard_heard = sample.received

    def objection(self, now: float) -> str:
        """Return the guard's reason for withholding commands, or that the guard is gone; empty if commands pass."""
        if now - self._guard_heard > GUARD_TIMEOUT:
            return GUARD_GONE
        return f"the guard damps the robot: {self._guard.damping}" if self._guard.damping else ""

    @property
    def damped(self) -> dict[str, int]:
        """Return the number of times that the guard began to damp the robot since `wait_ready`, by reason."""
        return dict(Counter(self._guard.damped) - self._damped_before)

    def send(self, command: Command, rate: Tensor) -> None:
        position = command.values[0].double().numpy()
        key = position.tobytes(), self.stiffness_scale
        if key != self._sent[:2]:
            self._sent = (*key, self._command.seal(self.motors.command(position, self.stiffness_scale)))
        self.publishers[0].publish(self._sent[2])

    def damp(self) -> None:
        self.publishers[0].publish(self._damping)

    def wait_ready(self, timeout: float) -> None:
        """Wait for the guard, without which no command reaches the motors."""
        if not self.guard.wait(timeout, after=0):
            raise NotReady(
                f"the guard says nothing on {self.guard.topic}, so its damping would not be noticed; start "
                f"one of this version: robot-rl guard {self.robot.name}"
            )
        self._damped_before = Counter(self._guard.damped)

    def executor(self, topic: str) -> str:
        return f"start the guard that passes commands on: robot-rl guard {self.robot.name}"


DRIVER = DriverParts(LowState, LowCommands, twin="real.twin.quadruped:QuadrupedTwin")
