"""Commands to a robot with Unitree's motors: set-points, damping, and checks. Needs no torch."""

from __future__ import annotations

import numpy as np

from real.robots.wire import LOW_COMMAND, layout
from robot_rl.interface.robot import RobotSpec, UnitreeInterface

NO_POSITION, NO_SPEED = 2.146e9, 16000.0
"""Position, rad, and speed, rad/s, of an unused motor's command."""
DAMPING = 5.0
"""Damping of a robot that sinks down, N m s/rad."""
FIRMEST = 1.5
"""Multiple of the spec's stiffness for standing up: at a walking policy's it would sag on bent knees."""
STATE_TIMEOUT = 0.05
"""Oldest state to move a robot on, s."""
GUARD_TOPIC = "guard"
"""std_msgs/String, JSON, at every change and GUARD_RATE: `damping`, the reason for damping, empty while commands pass;
`latched`, whether only standing up ends it; `damped`, how often it began, by reason."""
GUARD_RATE = 50.0
"""Hz"""
ARMING = 0.3
"""Largest share of the spec's stiffness with which standing up begins."""
NEAR = 0.3
"""Largest distance of a set-point from its joint with which standing up begins, rad."""
JUMP, GROWTH = 0.6, 4.0
"""Largest share of the spec's stiffness right after one of at most `ARMING`, and its largest growth per second.
Standing up grows by 2.5 to 3.3 per second; a faulty process must not be much faster."""
_SLACK = 0.01
"""Tolerance of the guard's position limits, rad, for rounding."""
_ROUNDING = 1e-3
"""Tolerance of gains."""


_ASKED = ("q", "dq", "tau", "kp", "kd")
"""Fields of a motor's command that may be set; all others stay as in a blank command."""


class Motors:
    """The motors of one robot, in the order of the messages."""

    def __init__(self, robot: RobotSpec):
        assert isinstance(robot.ros, UnitreeInterface)
        self.motor = np.array([robot.ros.motors.index(name) for name in robot.joint_names])
        """Motor number of each joint, in the spec's order."""
        joints = [robot.joints[robot.joint_names.index(name)] for name in robot.ros.motors]
        self.joint = np.array([robot.joint_names.index(name) for name in robot.ros.motors])
        """Index of each motor's joint in the spec."""
        self.count = len(joints)
        self.stiffness, self.damping = (np.array([getattr(j, n) for j in joints]) for n in ("stiffness", "damping"))
        self.low, self.high = (np.array([getattr(j, n) for j in joints]) for n in ("low", "high"))
        self._blank = layout(LOW_COMMAND).empty()
        self._blank["head"], self._blank["level_flag"] = (0xFE, 0xEF), 0xFF
        motors = self._blank["motor_cmd"]
        motors["mode"], motors["q"], motors["dq"] = 1, NO_POSITION, NO_SPEED
        wire, asked = layout(LOW_COMMAND), layout(LOW_COMMAND).empty()
        for name in _ASKED:
            asked["motor_cmd"][name][: self.count].view(np.uint32)[:] = 0xFFFFFFFF
        asked["crc"] = 0xFFFFFFFF
        self._rest = wire.content(asked) == 0
        """Bytes of a command other than the robot's motors: they must be those of a blank one."""
        self._content, self._blank_rest = wire.content, wire.content(self._blank)[self._rest]

    def command(self, position: np.ndarray, stiffness_scale: float = 1.0) -> np.ndarray:
        """Return a LowCmd with set-points (J,), rad, in the spec's order, at a share of the spec's stiffness."""
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
        """Return the largest share of the spec's stiffness in a LowCmd."""
        return float((command["motor_cmd"][: self.count]["kp"] / self.stiffness).max())

    def arms(self, command: np.ndarray, position: np.ndarray) -> bool:
        """Return whether a LowCmd may begin standing up, with the motors at positions (M,), rad, in motor order: little
        stiffness on every joint, and set-points near the measured positions."""
        motors = command["motor_cmd"][: self.count]
        gently = (motors["kp"] > 0) & (motors["kp"] <= ARMING * self.stiffness)
        return bool((gently & (np.abs(motors["q"] - position) <= NEAR)).all())

    def refusal(self, command: np.ndarray) -> str:
        """Return why a LowCmd must not reach the motors; empty if it may. Only set-points and gains of the robot's own
        motors may be set, within limits, and stiffness only with its damping: no torque, speed or mode, no other
        motors, battery, lamps or fans.
        """
        motors = command["motor_cmd"][: self.count]
        q, dq, tau, kp, kd = (motors[name].astype(float) for name in _ASKED)
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
