"""Drive a robot that walks or rolls by itself, by `cmd_vel` or a teleop device, without a policy."""

from __future__ import annotations

import logging

from real.bus import Node
from real.control.timing import Ticker
from real.drivers import parts_of
from real.episode.env import RobotEnv
from real.teleop.commands import OperatorInput
from robot_rl.interface.command import BaseVelocity
from robot_rl.interface.control import BaseVelocityConfig
from robot_rl.interface.pipeline import Interface
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.spec import Field
from robot_rl.util.errors import ConfigError

logger = logging.getLogger(__name__)


def interface_of(robot: RobotSpec, limits: BaseVelocityConfig) -> Interface:
    """Return the interface in which the command is the action; `limits`: largest speeds and their ramp."""
    x, y, yaw = limits.forward, limits.left, limits.turn
    velocity = Field("velocity", ("x", "y"), "m/s", (-x, -y), (x, y), "trunk")
    command = velocity, Field("turn", ("yaw",), "rad/s", (-yaw,), (yaw,), "trunk")
    return Interface("drive", robot.name, "", ("command",), command=command, controller=limits)


class Driving:
    """A base that follows a person, `cmd_vel`, or neither, through the checks of a robot that a policy commands."""

    def __init__(self, node: Node, robot: RobotSpec, limits: BaseVelocityConfig, dry_run: bool = False):
        """Connect to the robot and check its topics; NotReady if something is missing."""
        if BaseVelocity not in parts_of(robot).commands.accepts:
            raise ConfigError(f"robot {robot.name!r} takes no velocities; go2_sport does, see `robot-rl robots`")
        operator = OperatorInput(node, robot.name, robot.base is not None)
        self.env = RobotEnv(node, interface_of(robot, limits), operator=operator, dry_run=dry_run, robot=robot)

    def activate(self) -> None:
        """Start sending commands: the robot stands."""
        self.env.activate()
        self.env.note("phase", "driving")

    def run(self) -> None:
        """Drive until an exception: NotReady if the robot fails, or is stopped and no teleop device can reset it."""
        env, rate, steps, source = self.env, Ticker(self.env.period), 0, ""
        assert env.steering is not None
        while True:
            operator = env.look()
            env.read()
            if env.loop.stopped:
                env.await_release()
                steps = 0  # the command begins at zero again
            command = env.command = env.steering(operator, 0, steps)
            env.loop.set_goal(command, 0.0, env.period)
            if env.steering.command_source != source:
                source = env.steering.command_source
                logger.info("command from: %s", source)
                env.note("command", {"from": source})
            steps += 1
            rate.wait()

    def close(self) -> None:
        """Stop the robot."""
        self.env.close()
