"""Leader arm as a teleop device: the robot's tool follows the tool of a second arm that a person holds.

The leader publishes sensor_msgs/JointState with the robot's joint names, as GELLO's node does. Its tool is where the
robot's would be with these joint positions. The input is a motion towards it, so that all limits of a correction hold.
"""

import re
from collections.abc import Callable

import numpy as np
import torch

from real.bus import Node, Stamped, Subscription, qos
from real.clock import now
from real.drivers.joint_states import TYPE
from real.drivers.names import driver_names
from real.teleop.commands import PRESSES, Operator
from real.teleop.keyboard import Keyboard
from real.teleop.towards import Vector, difference, towards
from robot_rl.interface.driver import JointTopics
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import ConfigError

TOPIC = "leader/joint_states"
"""Topic of the leader's joint states, relative to the namespace."""
OLD = 0.2
"""Age from which on a joint state does not count, s."""
NEAR, ALIGNED = 0.05, 0.5
"""Largest distance, m, and angle, rad, between the tools at which the leader takes over."""
REPEAT = 1.0
"""Time after which the terminal says again why the robot does not follow, s."""
HELP = """\
h       take over, and let go: at first bring the leader to where the robot is
space   close / open the gripper; c close, v open; or the leader's own fingers
y / n   the episode succeeded / failed     x   EMERGENCY STOP     enter   reset     q   quit
"""


class Leader:
    """Second arm of the robot's shape. The keyboard gives and returns control."""

    help = HELP

    def __init__(
        self, node: Node, robot: RobotSpec, keyboard: Keyboard, say: Callable[[str], None], topic: str = TOPIC,
        clock: Callable[[], float] = now,
    ):  # fmt: skip
        if robot.tool is None or not isinstance(robot.driver, JointTopics):
            raise ConfigError(f"a leader arm needs a robot with a tool and joint states; {robot.name} has not both")
        self.robot, self.keyboard, self._say, self._clock = robot, keyboard, say, clock
        self.kinematics, self._names = Kinematics(robot), driver_names(node, robot)
        self._leader = node.subscribe(TYPE, topic, qos.SENSOR)
        self._robot = node.subscribe(TYPE, robot.driver.joint_states, qos.SENSOR)
        self._follows, self._told, self._said = False, "", -float("inf")

    def read(self) -> Operator:
        """Return the operator's input; `held` only while the robot follows the leader."""
        keys, wants = self.keyboard.read(), False
        motion = rotation = (0.0, 0.0, 0.0)
        gripper, why = keys.gripper, ""
        if self.keyboard.kept:
            motion, rotation, why = self._towards_leader()
            wants = not why
            gripper = keys.gripper or self._fingers()
        self._follows = wants
        kind = re.sub(r"[\d.]+", "", why)  # the distance changes with every reading
        if why and (kind != self._told or self._clock() - self._said > REPEAT):
            self._say(why)
            self._said = self._clock()
        self._told = kind
        presses = {name: getattr(keys, name) for name in PRESSES}
        return Operator(wants, motion, gripper if wants else 0.0, **presses, rotation=rotation)

    def _towards_leader(self) -> tuple[Vector, Vector, str]:
        """Return motion and rotation towards the leader's tool, and why the robot does not follow it, empty if it
        does."""
        still = (0.0, 0.0, 0.0)
        names = self._names[: len(self.robot.joints)]
        poses = []
        for who, subscription in (("leader", self._leader), ("robot", self._robot)):
            values = self._positions(subscription, names)
            if values is None:
                return still, still, f"no control: no joint state of the {who} on {subscription.topic}"
            if not np.isfinite(values).all():
                return still, still, f"no control: the {who}'s joint state on {subscription.topic} is not complete"
            poses.append(self.kinematics.forward(torch.from_numpy(values)[None].float()))
        offset, angle = difference(poses[1], poses[0])
        if not self._follows and (offset.norm() > NEAR or angle.norm() > ALIGNED):
            return still, still, (
                f"bring the leader to the robot: they are {100 * offset.norm():.0f} cm and {angle.norm():.1f} rad apart"
            )
        return *towards(offset, angle), ""

    def _positions(self, subscription: Subscription, names: tuple[str, ...]) -> np.ndarray | None:
        """Return the newest positions (K,) of the named joints, NaN where the message lacks one; None if it is old."""
        sample: Stamped | None = subscription.latest
        if sample is None or self._clock() - sample.received > OLD:
            return None
        known = dict(zip(sample.msg.name, sample.msg.position, strict=False))
        return np.array([known.get(name, np.nan) for name in names])

    def _fingers(self) -> float:
        """Return -1 if the leader's fingers, named as the robot's, are less than half open, 1 if more; 0 without."""
        names, gripper = self._names[len(self.robot.joints) :], self.robot.gripper
        values = self._positions(self._leader, names) if names and gripper else None
        if values is None or gripper is None or not np.isfinite(values).all():
            return 0.0
        return 1.0 if values.sum() > gripper.width / 2 else -1.0

    def begin(self) -> None:
        """Begin an episode."""
        self.keyboard.begin()

    def close(self) -> None:
        """Unsubscribe, and restore the terminal. Idempotent."""
        for each in (self._leader, self._robot):
            each.close()
        self.keyboard.close()

