"""`robot-rl teleop` and `robot-rl tell`: publish an operator's commands and instructions."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tyro

from robot_rl.cli.options import RosArgs
from robot_rl.util.errors import ConfigError, UnknownName, UserError
from robot_rl.util.limits import PositiveFloat, Seed

if TYPE_CHECKING:
    from real.bus import Node
    from real.teleop.scripted_arm import ArmOperator
    from robot_rl.interface.robot import RobotSpec

DEVICES = ("keyboard", "gamepad", "spacemouse", "leader", "scripted", "none")
RATES = (20.0, 50.0)
"""Allowed message rates, Hz: after 0.1 s without a message, the robot treats the operator as gone."""


@dataclass
class Teleop:
    """Publish an operator's input for `robot-rl deploy` and `robot-rl finetune`. The keys are printed at the start.

    Only the robot named by --robot receives the input: the topic is teleop/<robot>/joy (sensor_msgs/msg/Joy)."""

    device: tyro.conf.Positional[str]
    """Input device: keyboard, gamepad, spacemouse, leader (a second arm, whose joint states arrive on --path), scripted
    (on the twin: corrects an arm, or steers and stops a legged robot), or none, which publishes nothing."""
    task: str | None = None
    """Task of an arm's scripted operator; default: the robot's first task."""
    robot: str = "panda"
    """Robot that receives the input; for a legged robot, the operator's motion input is the velocity command."""
    rate: PositiveFloat = 30.0
    """Message rate, Hz, 20 to 50."""
    operator: str = "steady"
    """Scripted operator of an arm: steady, slow (0.8 s late, at 40 % of the speed), beside (always 1 cm), or tired
    (0.025 s later after each takeover)."""
    seed: Seed = 0
    """Seed of the scripted operator."""
    path: str = ""
    """Gamepad device file, default: the first /dev/input/js*; the socket of the SpaceMouse's daemon
    spacenavd; or the topic of a leader's joint states, default: leader/joint_states."""
    map: str = ""
    """File with the gamepad's layout, a line of SDL's gamecontrollerdb.txt; known gamepads need no such file."""
    check: bool = False
    """Show the device's input and the resulting commands, but send nothing; create a gamepad's --map file if absent."""
    ros_args: RosArgs = field(default_factory=list)

    def run(self) -> int:
        if self.device not in DEVICES:
            raise UnknownName("teleop device", self.device, DEVICES)
        if not RATES[0] <= self.rate <= RATES[1]:
            raise ConfigError(f"--rate is {self.rate:g} Hz; give {RATES[0]:g} to {RATES[1]:g}")
        if self.device == "none":
            _say("no device, nothing to publish")
            return 0
        if self.device != "gamepad" and self.map:
            raise ConfigError(f"--map is for a gamepad, not for {self.device}")
        if self.device == "scripted" and self.check:
            raise ConfigError("--check is for devices of a person, not for scripted")
        from robot_rl.robots import robots

        robot = robots.get(self.robot)
        if self.check and self.device == "gamepad":
            return self._check(robot.base is not None)
        return self._scripted(robot) if self.device == "scripted" else self._publish(robot)

    def _scripted(self, robot: RobotSpec) -> int:
        from real.bus import open_node
        from real.teleop import stream, until_signal
        from real.teleop.scripted_walker import Walker

        with until_signal() as wait, open_node("teleop", ros_args=self.ros_args) as node:
            device = Walker(node, _say) if robot.base else self._corrector(node)
            _say(device.help)
            stream(node, device, robot.name, self.rate, wait, _say)
        return 0

    def _corrector(self, node: Node) -> ArmOperator:
        import torch

        from real.teleop.scripted_arm import ArmOperator
        from robot_rl.interface.pipeline import Pipeline
        from robot_rl.operators.scripted import PEOPLE
        from sim.tasks import task_of

        if self.operator not in PEOPLE:
            raise UnknownName("operator", self.operator, tuple(PEOPLE))
        torch.set_num_threads(1)
        task = task_of(self.robot, self.task)
        if not task.expert:
            raise UserError(f"task {task.name!r} has no scripted operator; use the keyboard or a gamepad")
        pipeline = Pipeline(task.expert_interface)
        demonstrator = task.make_expert(pipeline, 1, "STEADY", self.seed)
        return ArmOperator(node, pipeline, demonstrator, config=PEOPLE[self.operator], seed=self.seed)

    def _check(self, legged: bool) -> int:
        from real.teleop.check import check
        from real.teleop.joystick import Joystick
        from real.teleop.stream import until_signal

        with until_signal() as wait, closing(Joystick(self.path)) as device:
            check(device, legged, self.map, wait, _say)
        return 0

    def _publish(self, robot: RobotSpec) -> int:
        from real.bus import BusError, open_node
        from real.teleop import open_device, stream, until_signal
        from real.teleop.check import watch
        from real.teleop.leader import TOPIC, Leader

        legged = robot.base is not None
        with until_signal() as wait:  # before the terminal's mode changes, so that a signal restores it
            hand = "keyboard" if self.device == "leader" else self.device
            device: Any = open_device(hand, legged, "" if self.device == "leader" else self.path, self.map)
            try:
                with closing(device), open_node("teleop", ros_args=self.ros_args) as node:
                    if self.device == "leader":
                        device = Leader(node, robot, device, _say, self.path or TOPIC)
                    _say(device.help)
                    if self.check:
                        watch(device, wait, _say)
                    else:
                        stream(node, device, robot.name, self.rate, wait, _say)
            except BusError as error:
                raise UserError(str(error)) from error
        return 0


@dataclass
class Tell:
    """Send instructions to a robot or its twin that runs a policy that reads instructions.

    A single instruction is sent at once. Of several instructions, the first is sent before each episode and the others
    during the episode, until Ctrl-C. If none is given, each line that you type is sent."""

    instructions: tyro.conf.Positional[tuple[str, ...]] = ()
    """Instructions, for example: robot-rl tell "lift the green ball"."""
    after: PositiveFloat = 3.0
    """Time from the start of an episode to the second instruction, and between later instructions, s."""
    ros_args: RosArgs = field(default_factory=list)

    def run(self) -> int:
        from real import clock
        from real.bus import open_node
        from real.teleop import until_signal
        from real.teleop.talk import CueScript, InstructionPublisher

        with open_node("tell", ros_args=self.ros_args) as node:
            if len(self.instructions) > 1:
                script = CueScript(node, self.instructions, self.after)
                _say(f"tells, in each episode, {self.after:g} s apart: " + "; ".join(self.instructions))
                with until_signal() as wait:
                    if clock.in_lockstep():
                        script.voice.await_listener(60.0)
                        clock.join()
                    while not clock.pause(0.02, wait):
                        if said := script.step():
                            _say(f"told: {said}")
                return 0
            publisher = InstructionPublisher(node)
            publisher.await_listener()
            if self.instructions:
                publisher.say(self.instructions[0])
                return 0
            _say("type an instruction and press Enter; Ctrl-D ends")
            for line in sys.stdin:
                try:
                    publisher.say(line)
                except ConfigError as error:  # no robot would accept the line
                    _say(str(error))
            return 0


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()
