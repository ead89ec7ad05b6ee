"""Driver of a robot with Unitree's low-level messages: it receives LowState and sends LowCmd through the guard."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.bus import Stamped, Subscription, qos
from real.robots.base import Driver, JointReading, NotReady
from real.robots.lowlevel import GUARD_TOPIC, Motors
from real.robots.wire import LOW_COMMAND, LOW_STATE, layout
from robot_rl.interface.robot import UnitreeInterface
from robot_rl.interface.state import RobotState


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


class UnitreeDriver(Driver):
    """Driver of a robot with Unitree's messages. Joints are matched through the spec's order of the motors. Commands go
    to the guard, not to the motors, because motors follow the last command of a dead process forever."""

    def _connect(self) -> None:
        node, robot, ros = self.node, self.robot, self.robot.ros
        assert isinstance(ros, UnitreeInterface) and robot.base is not None
        self.motors = Motors(robot)
        self._foot = np.array([ros.feet.index(name) for name in robot.base.feet])
        self.stiffness_scale = 1.0
        """Multiple of the spec's stiffness in commands."""
        self._sent: tuple[bytes, float, bytes] = (b"", 0.0, b"")
        """Set-points, stiffness and message of the last command. Most commands repeat it and need no new encoding."""
        self._damping = b""
        self._latest: TrunkReading | None = None
        self._tick = -1
        """Tick counter of the latest state, ms."""
        self._state, self._command = layout(LOW_STATE), layout(LOW_COMMAND)
        self.joints = node.subscribe(LOW_STATE, ros.low_state, qos.SENSOR, self._on_state)
        self._guard: dict[str, Any] = {"damping": "", "damped": {}}
        """Newest report of the guard."""
        self._guard_raw, self._guard_heard = b"", -float("inf")
        self._damped_before: Counter[str] = Counter()
        if not self.dry_run:
            self.reports = node.subscribe("std_msgs/msg/String", GUARD_TOPIC, qos.SENSOR, self._on_guard)
            self.command = node.publisher(LOW_COMMAND, ros.wanted_command, qos.COMMAND)
            self.commands = [self.command]

    def _on_state(self, sample: Stamped) -> None:
        self._raise_priority_once()
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
        norm = float(np.linalg.norm(quat))
        # An IMU that is still starting reports a quaternion of zeros.
        if not (0.9 < norm < 1.1 and np.isfinite([*position, *velocity, *gyroscope]).all()):
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

    def _on_guard(self, sample: Stamped) -> None:
        if sample.raw != self._guard_raw:
            self._guard_raw, self._guard = bytes(sample.raw), json.loads(sample.msg.data)
        self._guard_heard = sample.received

    def objection(self, now: float) -> str:
        """Return the guard's reason for withholding commands, or that the guard is gone; empty if commands pass."""
        if self.dry_run:
            return ""
        if now - self._guard_heard > GUARD_TIMEOUT:
            return GUARD_GONE
        return f"the guard damps the robot: {self._guard['damping']}" if self._guard["damping"] else ""

    @property
    def damped(self) -> dict[str, int]:
        """Return the number of times that the guard began to damp the robot since `wait_ready`, by reason."""
        return dict(Counter(self._guard["damped"]) - self._damped_before)

    def reading(self) -> TrunkReading | None:
        """Return the latest state, None before the first."""
        return self._latest

    def state(self, last_action: Tensor) -> RobotState | None:
        """Return the robot's state as named views (n = 1), without the velocity command; None while joints or objects
        are missing."""
        reading = self._latest
        poses, _ = self.object_poses()
        if reading is None or len(poses) < len(self.poses):
            return None
        arrays = reading.position, reading.velocity, reading.quat, reading.gyroscope, reading.foot_force
        position, velocity, quat, gyroscope, force = (torch.from_numpy(v).float()[None] for v in arrays)
        views: dict[str, Any] = {"base_quat": quat, "base_angular_velocity": gyroscope, "foot_force": force}
        return RobotState(position, velocity, last_action, objects=poses, **views)

    def send(self, position: np.ndarray, gripper: float) -> None:
        """Publish set-points (J,), rad, of the motors' springs; `gripper` is ignored."""
        if self.dry_run:
            return
        key = position.tobytes(), self.stiffness_scale
        if key != self._sent[:2]:
            self._sent = (*key, self._command.seal(self.motors.command(position, self.stiffness_scale)))
        self.command.publish(self._sent[2])

    def damp(self) -> None:
        """Damp all joints."""
        self._damping = self._damping or self._command.seal(self.motors.damp())
        if not self.dry_run:
            self.command.publish(self._damping)

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait for the state and for the guard, without which no command reaches the motors."""
        super().wait_ready(timeout)
        if self.dry_run:
            return
        if not self.reports.wait(timeout):
            raise NotReady(
                f"the guard says nothing on {self.reports.topic}, so its damping would not be noticed; start "
                f"one of this version: robot-rl guard {self.robot.name}"
            )
        self._damped_before = Counter(self._guard["damped"])

    def executor(self, topic: str) -> str:
        """Return advice on the process that must run to execute commands on a topic."""
        return f"start the guard that passes commands on: robot-rl guard {self.robot.name}"

    def _reports(self) -> list[Subscription]:
        return super()._reports() if self.dry_run else [*super()._reports(), self.reports]

    def _missing_state(self) -> list[str]:
        if self._latest is not None:
            return []
        bad = f" ({self.rejected} were damaged)" if self.rejected else ""
        return [f"state of {self.robot.name} on {self.joints.topic}{bad}"]
