"""`robot-rl teleop`: publish an operator's commands."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tyro

from robot_rl.util.errors import ConfigError, UnknownName, UserError
from robot_rl.util.limits import PositiveFloat, Seed

if TYPE_CHECKING:
    from real.bus import Node
    from real.teleop.scripted_arm import ArmOperator
    from real.teleop.scripted_walker import Walker
    from robot_rl.interface.robot import RobotSpec

DEVICES = ("keyboard", "gamepad", "scripted", "none")
RATES = (20.0, 50.0)  # Hz: after 0.1 s of silence the robot takes the operator for gone


@dataclass
class Teleop:
    """Publish an operator's input, for `robot-rl deploy` and `robot-rl finetune`.

    The keys are shown when it starts. Only the robot of --robot hears them: the topic is teleop/<robot>/joy
    (sensor_msgs/msg/Joy).
    """

    device: tyro.conf.Positional[str]
    """keyboard, gamepad, scripted (for the twin: corrects an arm, or steers and stops a walking robot), or none."""
    task: str | None = None
    """Task of an arm's scripted operator; default the robot's first."""
    robot: str = "panda"
    """Robot to steer, no other hears the device; on a walking robot, motion is its velocity command."""
    rate: PositiveFloat = 30.0
    """Messages per second, Hz, 20 to 50."""
    seed: Seed = 0
    """Seed of the scripted operator."""
    path: str = ""
    """Device file of the gamepad; default the first at /dev/input/js*."""
    map: str = ""
    """File with the gamepad's layout, a line of SDL's gamecontrollerdb.txt; default: known pads need none."""
    check: bool = False
    """Show what arrives from the gamepad and what it would command, and send nothing; makes the --map if absent."""
    ros_args: tyro.conf.Suppress[list[str]] = field(default_factory=list)

    def run(self) -> int:
        """Publish until the operator ends it or a signal comes; return the exit status."""
        if self.device not in DEVICES:
            raise UnknownName("teleop device", self.device, DEVICES)
        if not RATES[0] <= self.rate <= RATES[1]:
            raise ConfigError(f"--rate is {self.rate:g} Hz; give {RATES[0]:g} to {RATES[1]:g}")
        if self.device == "none":
            _say("no device, nothing to publish")
            return 0
        if self.device != "gamepad" and (self.check or self.map):
            raise ConfigError(f"--check and --map are for a gamepad, not for {self.device}")
        from robot_rl.robots import robots

        robot = robots.get(self.robot)
        if self.check:
            return self._check(robot.base is not None)
        return self._scripted(robot) if self.device == "scripted" else self._publish(robot)

    def _scripted(self, robot: RobotSpec) -> int:
        from real.bus import open_node
        from real.teleop import stream, until_signal

        with until_signal() as wait, open_node("teleop", ros_args=self.ros_args) as node:
            device = self._walker(node) if robot.base else self._corrector(node)
            _say(device.help)
            stream(node, device, robot.name, self.rate, wait, _say)
        return 0

    def _walker(self, node: Node) -> Walker:
        from real.teleop.scripted_walker import Walker

        return Walker(node, _say)

    def _corrector(self, node: Node) -> ArmOperator:
        import torch

        from real.teleop.scripted_arm import ArmOperator
        from robot_rl.interface.pipeline import Pipeline
        from sim.tasks import task_of

        torch.set_num_threads(1)
        task = task_of(self.robot, self.task)
        if not task.expert:
            raise UserError(f"task {task.name!r} has no scripted operator; use the keyboard or a gamepad")
        pipeline = Pipeline(task.expert_interface)
        return ArmOperator(node, pipeline, task.make_expert(pipeline, 1, "STEADY", self.seed))

    def _check(self, legged: bool) -> int:
        from real.teleop.check import check
        from real.teleop.joystick import Joystick
        from real.teleop.stream import until_signal

        with until_signal() as wait, closing(Joystick(self.path)) as device:
            check(device, legged, self.map, wait, _say)
        return 0

    def _publish(self, robot: RobotSpec) -> int:
        from real.bus import BusError, open_node
        from real.teleop import Gamepad, Keyboard, stream, until_signal

        legged = robot.base is not None
        with until_signal() as wait:  # before the terminal is changed, so that no signal leaves it changed
            device = Keyboard(legged=legged) if self.device == "keyboard" else Gamepad(self.path, legged, self.map)
            try:
                with closing(device), open_node("teleop", ros_args=self.ros_args) as node:
                    _say(device.help)
                    stream(node, device, robot.name, self.rate, wait, _say)
            except BusError as error:
                raise UserError(str(error)) from error
        return 0


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()
