"""An arm behind ros2_control topics: joint states in, streamed joint positions out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Stamped, make, qos
from real.clock import prefer_realtime
from robot_rl.errors import UserError
from robot_rl.kinematics import Kinematics
from robot_rl.rotation import matrix_to_quat
from robot_rl.spec import RobotSpec, RosInterface
from robot_rl.state import ABSENT, RobotState


class NotReady(UserError):  # noqa: N818 - it reads as a sentence
    """The robot does not send what control needs."""


@dataclass(frozen=True)
class JointReading:
    """One joint state, joints in the spec's order."""

    position: np.ndarray
    """(J,) rad"""
    velocity: np.ndarray
    """(J,) rad/s, zeros where the driver reports none"""
    gripper: float
    """Distance between the fingers, m."""
    received: float
    """Local monotonic time, s."""


class ArmDriver:
    """Subscribes to joint states, object poses and cameras; publishes joint positions and the gripper's width.

    Joints are matched by name, never by index; a message may hold more joints, or come in parts from several
    publishers. With `dry_run` there are no command publishers: everything happens except the sending.
    """

    def __init__(
        self,
        node: Node,
        robot: RobotSpec,
        objects: Sequence[str] = (),
        cameras: Sequence[str] = (),
        dry_run: bool = False,
    ):
        self.node, self.robot, self.dry_run = node, robot, dry_run
        self.kinematics = Kinematics(robot)
        fingers = robot.gripper.joints if robot.gripper else ()
        self._index = {name: k for k, name in enumerate((*robot.joint_names, *fingers))}
        self._position = np.full(len(self._index), np.nan)
        self._velocity = np.zeros(len(self._index))
        self._stamp = np.full(len(self._index), -np.inf)
        self._lock = threading.Lock()
        self._ordinary = not dry_run
        ros = robot.ros
        assert isinstance(ros, RosInterface)
        self.joints = node.subscribe("sensor_msgs/msg/JointState", ros.joint_states, qos.SENSOR, self._on_joints)
        self.poses = {
            name: node.subscribe("geometry_msgs/msg/PoseStamped", ros.object_pose.format(object=name), qos.SENSOR)
            for name in objects
        }
        self.images = {
            name: node.subscribe("sensor_msgs/msg/Image", ros.image.format(camera=name), qos.SENSOR) for name in cameras
        }
        if not dry_run:
            self.command = node.publisher("std_msgs/msg/Float64MultiArray", ros.command, qos.COMMAND)
            self.gripper = node.publisher("std_msgs/msg/Float64MultiArray", ros.gripper_command, qos.COMMAND)
        self.rejected = 0
        """Joint states that were malformed or not finite."""

    def _on_joints(self, sample: Stamped) -> None:
        if self._ordinary:  # the bus's reader thread, on its first joint state
            self._ordinary = False
            prefer_realtime(45)
        msg = sample.msg
        position = np.asarray(msg.position)
        if len(msg.name) != len(position) or not np.isfinite(position).all():
            self.rejected += 1
            return
        velocity = np.asarray(msg.velocity)
        with self._lock:
            for k, name in enumerate(msg.name):
                at = self._index.get(name)
                if at is not None:
                    self._position[at], self._stamp[at] = position[k], sample.received
                    if k < len(velocity) and np.isfinite(velocity[k]):
                        self._velocity[at] = velocity[k]

    def reading(self) -> JointReading | None:
        """The latest complete joint state, or None before the first; its age is that of the oldest joint."""
        with self._lock:
            oldest = float(self._stamp.min())
            if oldest == -np.inf:
                return None
            arm = len(self.robot.joints)
            return JointReading(
                self._position[:arm].copy(), self._velocity[:arm].copy(), float(self._position[arm:].sum()), oldest
            )

    def object_poses(self) -> tuple[dict[str, Tensor], float]:
        """Poses (1, 7) w x y z of the tracked objects, and the monotonic time of the oldest; empty before the first."""
        poses, oldest = {}, float("inf")
        for name, subscription in self.poses.items():
            sample = subscription.latest
            if sample is None:
                return {}, -float("inf")
            p, q = sample.msg.pose.position, sample.msg.pose.orientation
            poses[name] = torch.tensor([[p.x, p.y, p.z, q.w, q.x, q.y, q.z]], dtype=torch.float32)
            oldest = min(oldest, sample.received)
        return poses, oldest

    def state(self, last_action: Tensor) -> RobotState | None:
        """The named views (n = 1), or None while joints or objects are missing."""
        reading = self.reading()
        poses, _ = self.object_poses()
        if reading is None or len(poses) < len(self.poses):
            return None
        joints = torch.from_numpy(reading.position).float()[None]
        position, rotation = self.kinematics.forward(joints)
        return RobotState(
            joints,
            torch.from_numpy(reading.velocity).float()[None],
            last_action,
            tool_position=position,
            tool_quat=matrix_to_quat(rotation),
            gripper_width=torch.tensor([[reading.gripper]]) if self.robot.gripper else ABSENT,
            objects=poses,
        )

    def image(self, camera: str) -> np.ndarray | None:
        """Latest picture (H, W, 3) rgb8, or None; other encodings are refused."""
        sample = self.images[camera].latest
        if sample is None:
            return None
        msg = sample.msg
        if msg.encoding not in ("rgb8", "bgr8"):
            raise UserError(f"camera {camera!r} sends {msg.encoding!r}; rgb8 or bgr8 is needed")
        rows = np.frombuffer(msg.data, np.uint8).reshape(msg.height, msg.step)[:, : 3 * msg.width]
        picture = rows.reshape(msg.height, msg.width, 3)
        return picture[..., ::-1] if msg.encoding == "bgr8" else picture

    def image_received(self, camera: str) -> float:
        """Monotonic time at which the latest picture came, s; minus infinity before the first."""
        sample = self.images[camera].latest
        return sample.received if sample is not None else -float("inf")

    def send(self, position: np.ndarray, gripper: float) -> None:
        """Publish one command: joint positions (J,) in rad and the gripper's width in m."""
        if self.dry_run:
            return
        self.command.publish(_array(position))
        if self.robot.gripper:
            self.gripper.publish(_array(np.array([gripper])))

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait for the first complete state and a picture of each camera; refuse a second writer of commands."""
        deadline = time.monotonic() + timeout
        missing = self._missing()
        while missing and time.monotonic() < deadline:
            self.joints.wait(0.1)
            missing = self._missing()
        if missing:
            mismatches = "; ".join(self.node.incompatible())
            if all(what.startswith("picture") for what in missing):
                raise NotReady(
                    f"no {' and no '.join(missing)} within {timeout:g} s; start the camera, or go on without pictures "
                    f"(finetune --no-camera, deploy --video-episodes 0) {mismatches}".rstrip()
                )
            raise NotReady(
                f"no {' and no '.join(missing)} within {timeout:g} s; is the robot's driver running on this domain "
                f"(for a rehearsal: robot-rl twin {self.robot.name})? {mismatches}".rstrip()
            )
        for mismatch in self.node.incompatible():
            self.node.log("warn", mismatch)
        if not self.dry_run and (others := self.command.other_writers()):
            raise NotReady(f"{', '.join(others)} already sends commands on {self.command.topic}; stop it first")

    def _missing(self) -> list[str]:
        with self._lock:
            unseen = [name for name, k in self._index.items() if self._stamp[k] == -np.inf]
        missing = [f"state of {', '.join(unseen)} on {self.joints.topic}"] if unseen else []
        missing += [f"pose on {s.topic}" for s in self.poses.values() if s.latest is None]
        return missing + [f"picture on {s.topic}" for s in self.images.values() if s.latest is None]


def _array(values: np.ndarray) -> Any:
    return make("std_msgs/msg/Float64MultiArray", data=values)
