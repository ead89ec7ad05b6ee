"""Command parts of a driver: what an arm, legs or a base are sent, and what a gripper is sent."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from torch import Tensor

from real import clock
from real.bus import Node, Publisher, Subscription, qos
from real.bus.layout import template
from real.drivers.state import StateReader
from robot_rl.interface.command import Command, GripperCommand, JointPositions
from robot_rl.interface.robot import RobotSpec

ARRAY = "std_msgs/msg/Float64MultiArray"


class Commands(ABC):
    """Publisher of a robot's commands. Every command has passed the shield."""

    accepts: ClassVar[tuple[type[Command], ...]]
    """Kinds of commands that the robot takes; of those that a policy's controller gives, its first is used."""
    recovery: ClassVar[float] = 0.0
    """Longest time from `recover` until `objection` is empty, s; 0 if there is nothing to wait for."""

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        self.node, self.robot, self.state = node, robot, state
        self.publishers: list[Publisher] = []
        """Publishers of commands; each should be the only publisher on its topic."""
        self.reports: list[Subscription] = []
        """Subscriptions of topics with answers of the robot; each should have one publisher."""

    @abstractmethod
    def send(self, command: Command, rate: Tensor) -> None:
        """Publish a command (n = 1). `rate` (1, E): its velocity, or, of a command that is a velocity, its
        acceleration."""

    def rest(self) -> None:  # noqa: B027 - optional
        """Publish the last command of all, after which the robot must rest: called once when the stream of commands
        ends, in whatever way. Needed where the last of `send` would keep the robot moving."""

    def damp(self) -> None:
        """Damp all joints; only for a robot that sinks down instead of holding its position."""
        raise NotImplementedError(f"{self.robot.name} holds its position")

    def rivals(self, publisher: Publisher, process: bool = False) -> list[str]:
        """Return the publishers that must not be on a topic of commands, see `Publisher.other_writers`."""
        return publisher.other_writers(process)

    def objection(self, now: float) -> str:
        """Return the robot's reason for withholding commands from the motors; empty if there is none."""
        return ""

    def recover(self) -> None:  # noqa: B027 - optional
        """Let the robot recover from its latched stop: called when the operator resets a stop, never by a policy."""

    @property
    def damped(self) -> dict[str, int]:
        """Return the number of times that a guard began to damp the robot, by reason."""
        return {}

    def watch(self) -> None:  # noqa: B027 - optional
        """Look after the robot's side: called about twice a second, never by the command thread. It must not wait."""

    def wait_executor(self, timeout: float) -> None:  # noqa: B027 - optional
        """Wait up to `timeout` s for word of the process that executes commands; raise NotReady if it cannot. Called
        before the check that somebody listens, whose message knows less."""

    def wait_ready(self, timeout: float) -> None:  # noqa: B027 - optional
        """Wait up to `timeout` s until the robot's side can execute commands; raise NotReady if it cannot."""

    def executor(self, topic: str) -> str:
        """Return advice on the process that must run to execute commands on a topic."""
        name = topic.rpartition("/")[0].strip("/").rpartition("/")[2]
        return (
            f"is controller {name!r} active (`ros2 control list_controllers`, `ros2 control switch_controllers "
            f"--activate {name}`)? For a rehearsal: robot-rl twin {self.robot.name}"
        )


class JointVelocities(Commands):
    """Publisher of joint velocities on the topic `command` of the driver's config.

    They follow the shield's positions: its velocity plus `GAIN` times the distance still to go, within the joints'
    speed limits. They are zero while the robot's state is old, and at the end.
    """

    accepts = (JointPositions,)
    GAIN: ClassVar[float] = 5.0
    """Gain of the distance, 1/s."""

    def __init__(self, node: Node, robot: RobotSpec, state: StateReader):
        super().__init__(node, robot, state)
        topic: str = robot.driver.command  # type: ignore[attr-defined]
        self.publishers = [node.publisher(ARRAY, topic, qos.COMMAND)]
        self._layout = template(ARRAY, data=robot.home)
        self._limit = np.array([joint.velocity for joint in robot.joints])

    def send(self, command: Command, rate: Tensor) -> None:
        reading = self.state.reading()
        if reading is None or clock.now() - reading.received > self.robot.driver.safety.state_timeout:
            self.rest()
            return
        velocity = rate[0].double().numpy() + self.GAIN * (command.values[0].double().numpy() - reading.position)
        self.publishers[0].publish(self._layout.write(data=velocity.clip(-self._limit, self._limit)))

    def rest(self) -> None:
        self.publishers[0].publish(self._layout.write(data=0 * self._limit))


class GripperCommands(ABC):
    """Publisher of a gripper's commands."""

    def __init__(self, node: Node, robot: RobotSpec):
        self.publishers: list[Publisher] = []

    @abstractmethod
    def send(self, command: GripperCommand) -> None:
        """Publish a command; called at the command rate, mostly with the same command."""

    def wait_ready(self, timeout: float) -> None:  # noqa: B027 - optional
        """Wait up to `timeout` s until the gripper can execute commands; raise NotReady if it cannot."""

    def width(self) -> float | None:
        """Return the gripper's width, m; None if the joint states contain the fingers, or before it is known."""
        return None


class GripperWidth(GripperCommands):
    """Publisher of the distance between the fingers on the topic `gripper_command` of the driver's config."""

    def __init__(self, node: Node, robot: RobotSpec):
        super().__init__(node, robot)
        topic: str = robot.driver.gripper_command  # type: ignore[attr-defined]
        self.publishers = [node.publisher(ARRAY, topic, qos.COMMAND)]
        self._layout = template(ARRAY, data=[0.0])

    def send(self, command: GripperCommand) -> None:
        self.publishers[0].publish(self._layout.write(data=[command.width]))
