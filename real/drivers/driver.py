"""A driver: state, commands, gripper, scene and preflight of one robot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from real.bus import Node
from real.drivers.commands import Commands, GripperCommands
from real.drivers.preflight import Preflight
from real.drivers.scene import Scene
from real.drivers.state import JointReading, StateReader
from robot_rl.interface.command import Command, GripperCommand
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import ABSENT, OF_JOINTS, RobotState
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class DriverParts:
    """Classes of a driver's parts; a driver's module registers one instance."""

    state: type[StateReader]
    commands: type[Commands]
    gripper: type[GripperCommands] | None = None
    """None for robots without a gripper, or with one that the commands' class drives."""
    twin: str = ""
    """Import path of the simulated robot on the same topics, `real.twin.arm:ArmTwin`; empty: there is none."""

    def check(self, robot: RobotSpec) -> None:
        """Raise ConfigError if the parts do not fit each other or the robot."""
        what = f"robot {robot.name!r}, driver {robot.driver.driver!r}"
        if not getattr(self.commands, "accepts", ()):
            raise ConfigError(
                f"{what}: {self.commands.__name__}.accepts names no kind of command, such as JointPositions"
            )
        if robot.gripper and not robot.fingers and self.gripper and self.gripper.width is GripperCommands.width:
            raise ConfigError(
                f"{what}: the gripper has no finger joints, so {self.gripper.__name__} needs a method width(), which "
                "returns 0 when closed and the spec's width when open"
            )


class Driver:
    """Named state views of one robot from its messages, and messages from commands, unless `dry_run`."""

    def __init__(
        self, node: Node, robot: RobotSpec, parts: DriverParts, objects: Sequence[str] = (),
        cameras: Sequence[str] = (), dry_run: bool = False,
    ):  # fmt: skip
        self.node, self.robot, self.parts, self.dry_run = node, robot, parts, dry_run
        self.scene = Scene(node, robot, objects, cameras)
        self.state = parts.state(node, robot, realtime=not dry_run)
        self.commands = None if dry_run else parts.commands(node, robot, self.state)
        hand = parts.gripper if robot.gripper and not dry_run else None
        self.gripper = hand(node, robot) if hand else None
        self.preflight = Preflight(self)

    def reading(self) -> JointReading | None:
        """Return the latest complete state of joints and gripper, None before the first."""
        reading, gripper = self.state.reading(), self.robot.gripper
        width = self.gripper.width() if self.gripper else None
        if width is None and gripper and not self.robot.fingers:
            width = gripper.width  # before it is known, or in a dry run: open
        return reading if reading is None or width is None else replace(reading, gripper=width)

    def observe(self, last_action: Tensor, reading: JointReading | None = None) -> RobotState | None:
        """Return the robot's state, at a `reading` or now, as named views (n = 1); None while joints or objects are
        missing."""
        reading, (poses, _) = reading or self.reading(), self.scene.object_poses()
        if reading is None or len(poses) < len(self.scene.poses):
            return None
        joints, speeds = (torch.from_numpy(v).float()[None] for v in (reading.position, reading.velocity))
        width = torch.tensor([[reading.gripper]]) if self.robot.gripper else ABSENT
        views = self.state.views(reading)
        own = {"joint_position": joints, "joint_velocity": speeds, "last_action": last_action, "gripper_width": width}
        tracked = [name for name in poses if not name.endswith(OF_JOINTS)]
        return RobotState.from_views({**own, **views, **poses}, tracked)

    def send(self, command: Command, rate: Tensor, gripper: GripperCommand) -> None:
        """Publish a command (n = 1) with its `rate` (1, E), and the gripper's; nothing in a dry run."""
        if self.commands:
            self.commands.send(command, rate)
        if self.gripper:
            self.gripper.send(gripper)

    def rest(self) -> None:
        """Publish the last command of all."""
        if self.commands:
            self.commands.rest()

    def damp(self) -> None:
        """Damp all joints of a robot that sinks down instead of holding its position."""
        if self.commands:
            self.commands.damp()

    def objection(self, now: float) -> str:
        """Return the robot's reason for withholding commands from the motors; empty if there is none."""
        return self.commands.objection(now) if self.commands else ""

    def watch(self) -> None:
        """Look after the robot's side, about twice a second and not in the command thread."""
        if self.commands:
            self.commands.watch()

    def recover(self) -> None:
        """Let the robot recover from its latched stop."""
        if self.commands:
            self.commands.recover()

    @property
    def recovery(self) -> float:
        """Return the longest time that the robot takes to recover, s; 0 if there is nothing to wait for."""
        return self.commands.recovery if self.commands else 0.0

    @property
    def damped(self) -> dict[str, int]:
        """Return the number of times that a guard began to damp the robot, by reason."""
        return self.commands.damped if self.commands else {}

    @property
    def rejected(self) -> dict[str, int]:
        """Return the numbers of messages that were not used, by reason."""
        return {
            "states": self.state.rejected, "poses": self.scene.rejected, "jumps": self.state.jumps.count,
            "repeated": self.state.repeated + self.scene.repeated,
        }  # fmt: skip
