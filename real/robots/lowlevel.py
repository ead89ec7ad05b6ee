"""Commands to a robot with Unitree's motors: set-points, damping, and which commands are no good. Needs no torch."""

from __future__ import annotations

import numpy as np

from real.robots.wire import LOW_COMMAND, layout
from robot_rl.spec import RobotSpec, UnitreeInterface

NO_POSITION, NO_SPEED = 2.146e9, 16000.0
"""What a motor that is to do nothing is told: rad, rad/s."""
DAMPING = 5.0
"""Of a robot that is to sink down, N m s/rad."""
FIRMEST = 1.5
"""Share of the spec's stiffness with which a robot stands up: at a walking policy's it would sag on bent knees."""
STATE_TIMEOUT = 0.05
"""Oldest state to move a robot on, s."""
GUARD_TOPIC = "guard"
"""std_msgs/String, JSON, at every change and GUARD_RATE: `damping`, why the guard damps now, empty while it passes
commands on; `latched`, whether only standing up ends that; `damped`, how often it began to, by reason."""
GUARD_RATE = 50.0
"""Hz"""
ARMING = 0.3
"""Largest share of the spec's stiffness with which standing up begins."""
_SLACK = 0.01
"""Of the guard's limits, rad: for what rounding and the shield's own margin leave."""


_ASKED = ("q", "dq", "tau", "kp", "kd")
"""What a command may ask of a motor; all else it holds stays as in a blank one."""


class Motors:
    """The motors of one robot, in the order of the messages."""

    def __init__(self, robot: RobotSpec):
        assert isinstance(robot.ros, UnitreeInterface)
        self.motor = np.array([robot.ros.motors.index(name) for name in robot.joint_names])
        """Number of each joint's motor, in the spec's order of joints."""
        joints = [robot.joints[robot.joint_names.index(name)] for name in robot.ros.motors]
        self.joint = np.array([robot.joint_names.index(name) for name in robot.ros.motors])
        """Place of each motor's joint in the spec."""
        self.count = len(joints)
        self.stiffness, self.damping = (np.array([getattr(j, n) for j in joints]) for n in ("stiffness", "damping"))
        self.low, self.high = (np.array([getattr(j, n) for j in joints]) for n in ("low", "high"))
        self.effort, self.speed = (np.array([getattr(j, n) for j in joints]) for n in ("effort", "velocity"))
        self._blank = layout(LOW_COMMAND).empty()
        self._blank["head"], self._blank["level_flag"] = (0xFE, 0xEF), 0xFF
        motors = self._blank["motor_cmd"]
        motors["mode"], motors["q"], motors["dq"] = 1, NO_POSITION, NO_SPEED
        wire, asked = layout(LOW_COMMAND), layout(LOW_COMMAND).empty()
        for name in _ASKED:
            asked["motor_cmd"][name][: self.count].view(np.uint32)[:] = 0xFFFFFFFF
        asked["crc"] = 0xFFFFFFFF
        self._rest = wire.content(asked) == 0
        """Which bytes of a command ask nothing of the robot's own motors: they are those of a blank one."""
        self._content, self._blank_rest = wire.content, wire.content(self._blank)[self._rest]

    def command(self, position: np.ndarray, firmness: float = 1.0) -> np.ndarray:
        """LowCmd that pulls the joints to positions (J,), rad, in the spec's order, at a share of their stiffness."""
        command = self._blank.copy()
        motors = command["motor_cmd"][: self.count]
        motors["q"], motors["dq"] = position[self.joint], 0.0
        motors["kp"], motors["kd"] = firmness * self.stiffness, max(1.0, firmness) * self.damping
        return command

    def damp(self) -> np.ndarray:
        """LowCmd that lets every joint go and brakes its motion."""
        command = self._blank.copy()
        motors = command["motor_cmd"][: self.count]
        motors["q"], motors["dq"], motors["kd"] = 0.0, 0.0, DAMPING
        return command

    def arms(self, command: np.ndarray) -> bool:
        """Whether a LowCmd is how standing up begins: with some stiffness, and little on every joint."""
        stiffness = command["motor_cmd"][: self.count]["kp"]
        return bool(stiffness.any() and (stiffness <= ARMING * self.stiffness).all())

    def refusal(self, command: np.ndarray) -> str:
        """Why a LowCmd must not reach the motors; empty if it may.

        It may ask the robot's own motors for set-points and gains within their limits, and nothing else: neither modes,
        nor anything of other motors, the battery, lamps and fans.
        """
        motors = command["motor_cmd"][: self.count]
        q, dq, tau, kp, kd = (motors[name].astype(float) for name in _ASKED)
        if not np.isfinite([q, dq, tau, kp, kd]).all():
            return "nonfinite command"
        most = FIRMEST * self.stiffness + 1e-3, DAMPING + 1e-3
        if any(((gain < 0) | (gain > limit)).any() for gain, limit in zip((kp, kd), most, strict=True)):
            return "gain out of limits"
        asked = kp > 0
        if (asked & ((q < self.low - _SLACK) | (q > self.high + _SLACK))).any():
            return "position out of limits"
        if ((np.abs(tau) > self.effort) | ((kd > 0) & (np.abs(dq) > self.speed))).any():
            return "torque or speed out of limits"
        if (self._content(command)[self._rest] != self._blank_rest).any():
            return "more than set-points and gains"
        return ""
