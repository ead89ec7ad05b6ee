"""LowCmd messages for a robot with Unitree's motors: set-points, damping and validation. Does not import torch."""

import numpy as np

from real.bus.qos import QoS
from real.drivers.wire import LOW_COMMAND, layout
from robot_rl.interface.driver import UnitreeRobot
from robot_rl.interface.robot import RobotSpec

NO_POSITION, NO_SPEED = 2.146e9, 16000.0
"""Position, rad, and speed, rad/s, in the command of an unused motor."""
DAMPING = 5.0
"""Damping gain of a robot that sinks down, N m s/rad."""
FIRMEST = 1.5
"""Multiple of the spec's stiffness for standing up; at a policy's stiffness the knees stay bent."""
STATE_TIMEOUT = 0.05
"""Maximum age of a state with which a robot may still be moved, s."""
REPORT = QoS(depth=1, transient_local=True, blocking=0.0)
"""Quality of service of the guard's reports: publishing never blocks, and late joiners get the last one."""
GUARD_RATE = 50.0
"""Rate of the guard's reports, Hz."""
ARMING = 0.3
"""Maximum fraction of the spec's stiffness at the start of standing up."""
NEAR = 0.3
"""Maximum distance of a set-point from its joint's position at the start of standing up, rad."""
JUMP, GROWTH = 0.6, 4.0
"""Limit of stiffness, as a fraction of the spec's: `JUMP` after a command with at most `ARMING`, then growing by
`GROWTH` per second (standing up needs 3.3)."""
_SLACK = 0.01
"""Tolerance of the guard's position limits for rounding, rad."""
_ROUNDING = 1e-3
"""Tolerance of the guard's gain limits for rounding."""
_SETTABLE = ("q", "dq", "tau", "kp", "kd")
"""Fields of a motor's command that may be set; all others must equal those of a blank command."""


class Motors:
    """Motors of one robot, in the order of Unitree's messages."""

    def __init__(self, robot: RobotSpec):
        assert isinstance(robot.driver, UnitreeRobot)
        self.motor = np.array([robot.driver.motors.index(name) for name in robot.joint_names])
        """Motor index of each joint, (J,)."""
        joints = [robot.joints[robot.joint_names.index(name)] for name in robot.driver.motors]
        self.joint = np.array([robot.joint_names.index(name) for name in robot.driver.motors])
        """Joint index of each motor, (M,)."""
        self.count = len(joints)
        self.stiffness, self.damping = (np.array([getattr(j, n) for j in joints]) for n in ("stiffness", "damping"))
        self.low, self.high = (np.array([getattr(j, n) for j in joints]) for n in ("low", "high"))
        self._blank = layout(LOW_COMMAND).empty()
        self._blank["head"], self._blank["level_flag"] = (0xFE, 0xEF), 0xFF
        motors = self._blank["motor_cmd"]
        motors["mode"], motors["q"], motors["dq"] = 1, NO_POSITION, NO_SPEED
        wire, settable = layout(LOW_COMMAND), layout(LOW_COMMAND).empty()
        for name in _SETTABLE:
            settable["motor_cmd"][name][: self.count].view(np.uint32)[:] = 0xFFFFFFFF
        settable["crc"] = 0xFFFFFFFF
        self._rest = wire.content(settable) == 0
        """Mask of the bytes of a command that must equal those of a blank command."""
        self._content, self._blank_rest = wire.content, wire.content(self._blank)[self._rest]

    def command(self, position: np.ndarray, stiffness_scale: float = 1.0) -> np.ndarray:
        """Return a LowCmd with set-points (J,), rad, in the spec's order; the spec's stiffness is scaled."""
        command = self._blank.copy()
        motors = command["motor_cmd"][: self.count]
        motors["q"], motors["dq"] = position[self.joint], 0.0
        motors["kp"], motors["kd"] = stiffness_scale * self.stiffness, max(1.0, stiffness_scale) * self.damping
        return command

    def damp(self) -> np.ndarray:
        """Return a LowCmd that damps every joint."""
        command = self._blank.copy()
        motors = command["motor_cmd"][: self.count]
        motors["q"], motors["dq"], motors["kd"] = 0.0, 0.0, DAMPING
        return command

    def stiffness_scale(self, command: np.ndarray) -> float:
        """Return the largest ratio of a motor's stiffness in a LowCmd to the spec's."""
        return float((command["motor_cmd"][: self.count]["kp"] / self.stiffness).max())

    def arms(self, command: np.ndarray, position: np.ndarray) -> bool:
        """Return whether a LowCmd may begin standing up from motor positions (M,), rad: its stiffness must be low, and
        its set-points near these positions."""
        motors = command["motor_cmd"][: self.count]
        soft = (motors["kp"] > 0) & (motors["kp"] <= ARMING * self.stiffness)
        return bool((soft & (np.abs(motors["q"] - position) <= NEAR)).all())

    def refusal(self, command: np.ndarray) -> str:
        """Return the reason to refuse a LowCmd; empty if it is valid. A valid LowCmd sets only set-points and gains of
        the robot's own motors, within limits, and stiffness only together with damping. It sets no torque, speed, mode,
        other motors, battery or lamps."""
        motors = command["motor_cmd"][: self.count]
        q, dq, tau, kp, kd = (motors[name].astype(float) for name in _SETTABLE)
        if not np.isfinite([q, dq, tau, kp, kd]).all():
            return "nonfinite command"
        pulled = kp > 0
        low, high = np.where(pulled, self.damping, 0.0) - _ROUNDING, DAMPING + _ROUNDING
        if ((kp < 0) | (kp > FIRMEST * self.stiffness + _ROUNDING) | (kd < low) | (kd > high)).any():
            return "gain out of limits"
        if (pulled & ((q < self.low - _SLACK) | (q > self.high + _SLACK))).any():
            return "position out of limits"
        if dq.any() or tau.any() or (self._content(command)[self._rest] != self._blank_rest).any():
            return "more than set-points and gains"
        return ""
