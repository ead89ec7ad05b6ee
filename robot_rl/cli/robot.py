"""`robot-rl robot`: the process that alone holds a real arm, behind the same topics as its twin."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

from robot_rl.cli import options as opt

if TYPE_CHECKING:
    from real.bus import Node
    from real.held.node import HeldNode
    from robot_rl.interface.robot import RobotSpec


FLAGS = {
    "franka": ("port", "id", "calibration_dir", "lerobot_python", "release"),
    "lerobot": ("host", "realtime", "max_force", "max_torque"),
}
"""Options of other arms, by driver."""
OWNERS = {"franka": "an arm of LeRobot", "lerobot": "a Franka"}


@dataclass
class Robot:
    """Hold an arm through its maker's own software, and move it as the topics of an arm say.

    A Franka speaks its own protocol: goals of any rate become jerk-limited motion at 1 kHz. An arm of LeRobot, such as
    an SO-101, is moved by LeRobot's class. If goals stop, the arm brakes and holds. Ctrl-C brakes it and ends."""

    robot: opt.RobotName
    host: str = ""
    """Of a Franka: address, such as 192.168.1.11."""
    port: str = ""
    """Of an arm of LeRobot: serial port, such as /dev/ttyACM0."""
    id: str = ""
    """LeRobot's id of the arm, under which it was calibrated."""
    calibration_dir: Path | None = None
    """Folder of LeRobot's calibrations; default: LeRobot's."""
    lerobot_python: str = ""
    """Python of the environment with LeRobot; default: the variable LEROBOT_PYTHON, else this one."""
    release: bool = False
    """Let an arm of LeRobot sink down at the end, rather than hold."""
    dry_run: bool = False
    """Read the robot and compute its motion, but send it neither motion nor settings."""
    realtime: bool = False
    """Of a Franka: refuse a kernel without real-time scheduling, as libfranka does by default."""
    max_force: Annotated[float, Interval(ge=0, le=200)] = 0.0
    """External force at a Franka's tool at which the arm stops, N; 0: the spec's."""
    max_torque: Annotated[float, Interval(ge=0, le=100)] = 0.0
    """External torque at a Franka's joint at which the arm stops, N m; 0: the spec's."""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        import signal

        from real.bus import open_node
        from robot_rl.cli.console import console
        from robot_rl.robots import robots

        robot = robots.get(self.robot)
        with open_node("robot", ros_args=self.ros_args, rate=robot.command_rate) as node:
            held = self._open(node, robot)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda *_: held.close())
            try:
                held.run(lambda text: console.print(f"robot: {text}", soft_wrap=True))
            finally:
                console.print(f"robot: {held.summary()}", soft_wrap=True)
        return 0

    def _open(self, node: Node, robot: RobotSpec) -> HeldNode:
        import os

        from robot_rl.interface.driver import HeldArm, LeRobotControl
        from robot_rl.util.errors import ConfigError

        config = robot.driver
        if not isinstance(config, HeldArm):
            raise ConfigError(f"robot {robot.name!r} has a driver of its own, not this command; see `robot-rl robots`")
        if other := [name for name in FLAGS.get(config.driver, ()) if getattr(self, name)]:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in other)
            raise ConfigError(f"{flags}: for {OWNERS[config.driver]}, and not for {robot.name}; leave it out")
        if not (self.port if isinstance(config, LeRobotControl) else self.host):
            raise ConfigError(f"where is the robot? robot-rl robot {robot.name} {config.reached_by}")
        if isinstance(config, LeRobotControl):
            from real.lerobot.node import LeRobotNode

            python = self.lerobot_python or os.environ.get("LEROBOT_PYTHON", "")
            return LeRobotNode(
                node, robot, self.port, self.id, self.calibration_dir, python, self.release, self.dry_run
            )
        from real.franka.node import FrankaNode

        limits = {name: value for name in ("max_force", "max_torque") if (value := getattr(self, name))}
        return FrankaNode(node, robot, self.host, self.dry_run, self.realtime, limits)
