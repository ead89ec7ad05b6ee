"""The node in front of an arm of LeRobot: the topics of an arm on one side, LeRobot's process on the other."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from real.bus import Node
from real.bus.layout import template
from real.bus.stamps import stamped
from real.drivers.names import driver_names, frames
from real.held.node import HeldNode, start
from real.held.report import Report
from real.lerobot import holder
from robot_rl.interface.driver import LeRobotControl
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError, UserError

OPEN = 100.0
"""LeRobot's position of an open gripper."""
PORTS = ("ttyACM*", "ttyUSB*")
"""Files of serial ports in /dev."""
BEYOND = 0.2
"""Distance of a joint beyond its limits from which the calibration is taken to be wrong, rad."""


class Link(holder.Link):
    """The node's end of the socket to `holder`."""

    def receive(self) -> Any:
        """Return the next message, a state or a `Report`."""
        message = super().receive()
        return Report(**message) if message and "reason" in message else message


class LeRobotNode(HeldNode):
    """Robot process of an arm of LeRobot."""

    CONNECT = 90.0  # a full LeRobot imports torch, which takes long on a small computer

    def __init__(
        self, node: Node, robot: RobotSpec, port: str, name: str = "", calibration: Path | None = None,
        python: str = "", release: bool = False, dry_run: bool = False,
    ):  # fmt: skip
        """Args: `name`: LeRobot's id of the arm. `calibration`: folder of its calibrations. `python`: interpreter of
        LeRobot's environment; empty: this one. `release`: switch torque off at the end, rather than hold."""
        config = robot.driver
        if not isinstance(config, LeRobotControl):
            raise ConfigError(f"robot {robot.name!r} is none of LeRobot's; see `robot-rl robots`")
        if not Path(port).exists():
            found = ", ".join(sorted(str(path) for kind in PORTS for path in Path("/dev").glob(kind))) or "none"
            raise ConfigError(f"there is no serial port {port}; there are: {found} (lerobot-find-port finds the arm's)")
        super().__init__(node, robot, port)
        self.state: dict[str, Any] = {}
        """Newest message of the holder with positions."""
        joints = len(robot.joints)
        self.sign = np.array(config.signs or (1,) * joints)
        self.zero = np.array(config.zeros or (0.0,) * joints)
        self.low, self.high = (np.array([getattr(j, end) for j in robot.joints]) for end in ("low", "high"))
        motors = [config.motor(joint) for joint in (*robot.joint_names, *robot.fingers)]
        speed = [math.degrees(config.speed * j.velocity) for j in robot.joints]
        lead = [math.degrees(config.lead)] * joints
        if robot.gripper and robot.fingers:
            speed, lead = [*speed, OPEN * config.gripper_speed / robot.gripper.width], [*lead, OPEN]
        fields = dict(config.options) | {
            "port": port, "id": name or None, "calibration_dir": str(calibration) if calibration else None,
            "disable_torque_on_disconnect": release and not dry_run,
            "max_relative_target": {motor: 1.5 * x for motor, x in zip(motors, lead, strict=True)},
        }  # fmt: skip
        settings = {
            "type": config.type, "config": fields, "motors": motors, "joints": joints, "speed": speed, "lead": lead,
            "rate": robot.command_rate, "start": math.degrees(config.safety.start_mismatch),
            "goal_timeout": config.goal_timeout, "patience": config.patience, "silence": config.silence,
            "dry_run": dry_run,
        }  # fmt: skip
        # -E: our PYTHONPATH is not for LeRobot's interpreter
        self.parts.append(start("arm", [python or sys.executable, "-E", holder.__file__], Link, settings))
        base = {"header": {"frame_id": frames(node, robot)[0]}}
        names = list(driver_names(node, robot))
        self._joints = template("sensor_msgs/msg/JointState", **base, name=names, position=np.zeros(len(names)))
        self.listen()

    def follow(self, q: tuple[float, ...], received: float) -> None:
        goal = self.zero + self.sign * np.degrees(np.clip(q, self.low, self.high))
        self.parts[0].link.send(goal=goal.tolist(), time=received)

    def grip(self, width: float) -> None:
        assert self.robot.gripper
        if self.robot.fingers:
            self.parts[0].link.send(grip=OPEN * width / self.robot.gripper.width)

    def recover(self, number: int) -> None:
        self.parts[0].link.send(recover=number)

    def remedy(self, reason: str) -> str:
        return "" if reason or self.state else "; --lerobot-python must name a Python with LeRobot"

    def missing(self) -> str:
        return "" if self.state else "arm"

    @property
    def state_time(self) -> float | None:
        return self.state.get("time")

    @property
    def position(self) -> np.ndarray:
        """Return the newest positions of the joints, rad, and of a finger, m."""
        numbers = np.array(self.state["position"])
        arm, rest = numbers[: len(self.sign)], numbers[len(self.sign) :]
        width = self.robot.gripper.width if self.robot.gripper else 0.0
        return np.concatenate([np.radians(self.sign * (arm - self.zero)), rest / OPEN * width])

    def preflight(self) -> str:
        away = [f"{j.name} {math.degrees(max(low - x, x - high)):.0f} degrees"
                for j, x, low, high in zip(self.robot.joints, self.position, self.low, self.high, strict=False)
                if not low - BEYOND <= x <= high + BEYOND]  # fmt: skip
        if away:
            raise UserError(
                f"{self.robot.name} at {self.where} is beyond its limits ({', '.join(away)}): move it by hand with its "
                "power off, or calibrate it again if it does not look so"
            )
        home = np.abs(self.position[: len(self.sign)] - self.robot.home).max()
        return f"{home:.2f} rad from home; {self.states.topic} at {self.robot.state_rate:g} Hz"

    def take(self, message: Any) -> None:
        self.state = message
        self.publish(self._joints.write(position=self.position, **stamped()))

    def values(self) -> dict[str, Any]:
        return {
            "cycles": self.state["cycles"], "failed cycles": self.state["errors"],
            "slowest cycle, ms": f"{1000 * self.state['slowest']:.1f}",
        }  # fmt: skip

    def summary(self) -> str:
        if not self.state:
            return "the robot was not reached"
        failed = f"{self.state['errors']} of {self.state['cycles'] + self.state['errors']} cycles failed"
        return f"{failed}; not following: {json.dumps(self.counts)}"
