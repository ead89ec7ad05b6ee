"""An arm behind ros2_control topics: joint states in, streamed joint positions out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Stamped, make, qos
from real.robots.base import Driver, JointReading, seconds
from real.robots.velocity import VelocityEstimate
from real.robots.wiring import driver_names, suggestion
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec, RosInterface
from robot_rl.interface.state import ABSENT, RobotState


class ArmDriver(Driver):
    """Driver of an arm. Joints are matched by name; a message may hold more joints, or only some of them. A state of
    which the velocity cannot be known is not complete."""

    def __init__(
        self,
        node: Node,
        robot: RobotSpec,
        objects: Sequence[str] = (),
        cameras: Sequence[str] = (),
        dry_run: bool = False,
    ):
        super().__init__(node, robot, objects, cameras, dry_run)
        self.kinematics = Kinematics(robot)
        self._index = {name: k for k, name in enumerate(driver_names(node, robot))}
        self._position, self._velocity = (np.full(len(self._index), np.nan) for _ in range(2))
        self._stamp = np.full(len(self._index), -np.inf)
        """When each joint's last complete state came, monotonic s."""
        self._estimate = VelocityEstimate(len(self._index), 0.5 / robot.state_rate)
        self._named: list[set[str]] = []
        """Joints that arrive in one message, one set for each publisher: a second one of the same joints is refused."""
        self._settled = False
        """All that report the joints are known."""
        self._order: tuple[list[str], np.ndarray, np.ndarray] = [], np.zeros(0, int), np.zeros(0, int)
        """Names of the last message, the places of our joints in it, and in ours."""
        self._lock = threading.Lock()
        ros = robot.ros
        assert isinstance(ros, RosInterface)
        self.joints = node.subscribe("sensor_msgs/msg/JointState", ros.joint_states, qos.SENSOR, self._on_joints)
        if not dry_run:
            self.command = node.publisher("std_msgs/msg/Float64MultiArray", ros.command, qos.COMMAND)
            self.gripper = node.publisher("std_msgs/msg/Float64MultiArray", ros.gripper_command, qos.COMMAND)
            self.commands = [self.command, self.gripper] if robot.gripper else [self.command]

    def _on_joints(self, sample: Stamped) -> None:
        self._raise_priority_once()
        msg = sample.msg
        position = np.asarray(msg.position)
        if len(msg.name) != len(position):
            self.rejected += 1
            return
        if msg.name != self._order[0]:
            self._remember(list(msg.name))
        _, there, here = self._order
        position, given = position[there], np.asarray(msg.velocity)
        if not np.isfinite(position).all():
            self.rejected += 1
            return
        reported = np.full(len(there), np.nan)
        told = there < len(given)
        reported[told] = given[there[told]]
        stamp = seconds(msg.header.stamp)
        arm = here < len(self.robot.joints)  # fingers close faster than any limit says, and no one asks for their speed
        with self._lock:
            if len(here) and self._estimate.repeats(here, stamp):
                self.repeated += 1
                return
            moved, since = position[arm] - self._position[here[arm]], sample.received - self._stamp[here[arm]]
            if self.jumps.refuses(moved, since, sample.received, here[arm]):
                return
            velocity = self._estimate(here, position, reported, stamp, sample.received)
            known = ~arm | np.isfinite(velocity)
            here = here[known]
            self._position[here], self._velocity[here] = position[known], velocity[known]
            self._stamp[here] = sample.received

    def _remember(self, names: list[str]) -> None:
        """Keep where our joints are in messages with these names."""
        there = [k for k, name in enumerate(names) if name in self._index]
        self._order = names, np.array(there, int), np.array([self._index[names[k]] for k in there], int)
        with self._lock:
            if not self._settled and all(part.isdisjoint(names) for part in self._named):
                self._named.append(set(names))

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait for a complete state and a subscriber of the commands; whoever reports joints later is an intruder."""
        super().wait_ready(timeout)
        self._settled = True

    def reading(self) -> JointReading | None:
        """Return the latest complete joint state, or None before the first; its age is that of the oldest joint."""
        with self._lock:
            oldest = float(self._stamp.min())
            if oldest == -np.inf:
                return None
            arm = len(self.robot.joints)
            return JointReading(
                self._position[:arm].copy(), self._velocity[:arm].copy(), float(self._position[arm:].sum()), oldest
            )

    def state(self, last_action: Tensor) -> RobotState | None:
        """Return the named views (n = 1), or None while joints or objects are missing."""
        reading = self.reading()
        poses, _ = self.object_poses()
        if reading is None or len(poses) < len(self.poses):
            return None
        joints = torch.from_numpy(reading.position).float()[None]
        return RobotState(
            joints,
            torch.from_numpy(reading.velocity).float()[None],
            last_action,
            tool_position=self.kinematics.forward(joints)[0],
            gripper_width=torch.tensor([[reading.gripper]]) if self.robot.gripper else ABSENT,
            objects=poses,
        )

    def send(self, position: np.ndarray, gripper: float) -> None:
        """Publish one command: joint positions (J,) in rad and the gripper's width in m."""
        if self.dry_run:
            return
        self.command.publish(_array(position))
        if self.robot.gripper:
            self.gripper.publish(_array(np.array([gripper])))

    def _parts(self) -> int:
        with self._lock:
            return max(1, len(self._named))

    def _missing_state(self) -> list[str]:
        with self._lock:
            unseen = [name for name, k in self._index.items() if self._stamp[k] == -np.inf]
        if not unseen:
            return []
        heard = self._order[0]
        if set(unseen) <= set(heard):
            why = f"{self.repeated} repeated a stamp, {self.rejected} were not finite"
            return [f"position and velocity of {', '.join(unseen)} on {self.joints.topic} ({why})"]
        heard_of = "; ".join(filter(None, (", ".join(heard[:20]), suggestion(self.robot, heard))))
        named = f" (heard of {heard_of})" if heard else ""
        return [f"state of {', '.join(unseen)} on {self.joints.topic}{named}"]


def _array(values: np.ndarray) -> Any:
    return make("std_msgs/msg/Float64MultiArray", data=values)
