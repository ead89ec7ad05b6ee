"""The interface of drivers: the robot's newest state as named views, and sending one command."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Publisher, Stamped, Subscription, qos
from real.control.clock import prefer_realtime_bus
from real.robots.jumps import JumpCheck
from real.robots.wiring import frames
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import RobotState
from robot_rl.util.errors import UserError

UNIT = 0.1
"""Largest difference of an orientation's norm from 1; a quaternion of zeros is no orientation."""


class NotReady(UserError):  # noqa: N818 - it reads as a sentence
    """The robot does not send what control needs."""


@dataclass(frozen=True)
class JointReading:
    """One joint state, joints in the spec's order."""

    position: np.ndarray
    """(J,) rad"""
    velocity: np.ndarray
    """(J,) rad/s"""
    gripper: float
    """Distance between the fingers, m."""
    received: float
    """Local monotonic time, s."""

    @property
    def upright(self) -> float:
        """Return the cosine of the trunk's tilt; 1 for a fixed robot."""
        return 1.0


class Driver(ABC):
    """Subscribe to a robot's state, objects and cameras; publish its commands. With `dry_run` there is no command
    publisher.
    """

    joints: Subscription
    """Subscription of the joint states."""
    command: Publisher
    """Publisher of commands; None in a dry run."""
    needed: tuple[str, ...] = ()
    """Cameras that the policy sees: nothing runs without them."""

    def __init__(
        self,
        node: Node,
        robot: RobotSpec,
        objects: Sequence[str] = (),
        cameras: Sequence[str] = (),
        dry_run: bool = False,
    ):
        self.node, self.robot, self.dry_run = node, robot, dry_run
        self._ordinary = not dry_run
        self.commands: list[Publisher] = []
        """Publishers of commands, of which each should be its topic's only one."""
        self.jumps = JumpCheck(robot)
        self.accepted = dict.fromkeys(objects, 0)
        """Number of finite poses of each object."""
        self._seen: dict[str, tuple[Tensor, float]] = {}
        """The newest finite pose (1, 7) of each object, and its arrival, monotonic s."""
        self.images = {
            name: node.subscribe("sensor_msgs/msg/Image", robot.ros.image.format(camera=name), qos.SENSOR)
            for name in cameras
        }
        self.rejected = 0
        """Number of malformed or non-finite states."""
        self.repeated = 0
        """Number of states and object poses with the stamp of the one before: they count as silence."""
        self._stamps: dict[str, float] = {}
        """Stamp of the newest pose of each object, s."""
        self.rejected_poses = 0
        """Number of object poses that are not finite, have no orientation, or are in another frame."""
        self._frames = frames(node, robot)
        self._foreign: dict[str, str] = {}
        """What is wrong with the frame of each object's poses."""
        self._warned: set[str] = set()
        # From here on poses may arrive.
        self.poses = {
            name: node.subscribe(
                "geometry_msgs/msg/PoseStamped",
                robot.ros.object_pose.format(object=name),
                qos.SENSOR,
                partial(self._on_pose, name),
            )
            for name in objects
        }

    @abstractmethod
    def reading(self) -> JointReading | None:
        """Return the latest complete joint state, or None before the first."""

    def next_reading(self, timeout: float) -> JointReading | None:
        """Return the latest joint state after waiting for a new one, up to `timeout` seconds. If this process was
        suspended, its last state is old although the robot still sends.
        """
        now = time.monotonic()
        began, deadline = now, now + timeout
        while ((reading := self.reading()) is None or reading.received < began) and now < deadline:
            self.joints.wait(deadline - now)
            now = time.monotonic()
        return reading

    @abstractmethod
    def state(self, last_action: Tensor) -> RobotState | None:
        """Return the named views (n = 1), or None while one is missing."""

    @abstractmethod
    def send(self, position: np.ndarray, gripper: float) -> None:
        """Publish one command: joint positions (J,) in rad and the gripper's width in m."""

    def damp(self) -> None:
        """Damp all joints; for robots that sink down instead of holding."""
        raise NotImplementedError(f"{self.robot.name} holds its position")

    def objection(self, now: float) -> str:
        """Return why commands do not reach the motors, if a guard reports it; empty if they do."""
        return ""

    @property
    def damped(self) -> dict[str, int]:
        """Return how often a guard began to damp the robot, by reason."""
        return {}

    @abstractmethod
    def _missing_state(self) -> list[str]:
        """Return the missing parts of the robot's state."""

    def _raise_priority_once(self) -> None:
        """On the first state, make its thread a real-time one."""
        if self._ordinary:
            self._ordinary = False
            prefer_realtime_bus()

    # ---- objects and cameras -----------------------------------------------------------------------------------
    def _on_pose(self, name: str, sample: Stamped) -> None:
        p, q = sample.msg.pose.position, sample.msg.pose.orientation
        pose = torch.tensor([[p.x, p.y, p.z, q.w, q.x, q.y, q.z]], dtype=torch.float32)
        foreign = self._foreign_frame(sample.msg.header.frame_id)
        if foreign and foreign != self._foreign.get(name):
            self.node.log("warn", f"refused the pose of {name}: {foreign}")
        self._foreign[name] = foreign
        stamp = seconds(sample.msg.header.stamp)
        if stamp > 0 and stamp == self._stamps.get(name):
            self.repeated += 1
            return
        self._stamps[name] = stamp
        norm = pose[:, 3:].norm(dim=1, keepdim=True)
        if foreign or not (pose.isfinite().all() and abs(norm - 1.0) < UNIT):
            self.rejected_poses += 1
            return
        pose[:, 3:] /= norm
        self._seen[name] = pose, sample.received
        self.accepted[name] += 1

    def _foreign_frame(self, frame: str) -> str:
        """Return what to do about a frame that is not the robot's base; empty if it is, or if none is named."""
        if frame.removeprefix("/") in ("", *self._frames):
            return ""
        return (
            f"in frame {frame!r}, not in the robot's base frame {self._frames[0]!r}: transform it before publishing "
            "(tf2), or name the frame in the spec's ros.base_frames if it is the base"
        )

    def object_poses(self) -> tuple[dict[str, Tensor], float]:
        """Return poses (1, 7) w x y z of the tracked objects, and the monotonic time of the oldest; empty before the
        first."""
        seen = {name: self._seen[name] for name in self.poses if name in self._seen}
        if len(seen) < len(self.poses):
            return {}, -float("inf")
        return {name: pose for name, (pose, _) in seen.items()}, min((t for _, t in seen.values()), default=math.inf)

    def image(self, camera: str) -> np.ndarray | None:
        """Return the latest picture (H, W, 3) rgb8, or None; raise for other encodings."""
        sample = self.images[camera].latest
        return None if sample is None else _picture(sample, camera)

    def image_received(self, camera: str) -> float:
        """Return the monotonic time of the latest picture, s; minus infinity before the first."""
        sample = self.images[camera].latest
        return sample.received if sample is not None else -float("inf")

    # ---- start -------------------------------------------------------------------------------------------------
    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait for a complete state and a picture of each camera; raise if there is a second writer of state or
        commands."""
        deadline = time.monotonic() + timeout
        missing = self._missing()
        while missing and time.monotonic() < deadline:
            self.joints.wait(0.1)
            missing = self._missing()
        if missing:
            mismatches = "; ".join(self.node.incompatible())
            if blind := [self.images[c].topic for c in self.needed if self.images[c].latest is None]:
                raise NotReady(
                    f"no {' and no '.join(missing)} within {timeout:g} s; the policy sees {' and '.join(blind)}: start "
                    f"the camera (a twin has those of its task: robot-rl twin --task, task:=) {mismatches}".rstrip()
                )
            if all(what.startswith("picture") for what in missing):
                raise NotReady(
                    f"no {' and no '.join(missing)} within {timeout:g} s; start the camera, or go on without pictures "
                    f"(finetune --no-camera, deploy --video-episodes 0) {mismatches}".rstrip()
                )
            raise NotReady(
                f"no {' and no '.join(missing)} within {timeout:g} s; is the robot's driver running on this domain "
                f"(for a rehearsal: robot-rl twin {self.robot.name})? {mismatches}".rstrip()
            )
        self.warn_of_mismatches()
        for publisher in self.commands:
            if others := publisher.other_writers():
                raise NotReady(f"{', '.join(others)} already sends commands on {publisher.topic}; stop it first")
        self.check_single_publisher(deadline - time.monotonic())  # a killed publisher is remembered for some seconds
        if not self.node.wait_for(lambda: not self.unmatched_topics(), max(1.0, deadline - time.monotonic())):
            raise NotReady(self.unmatched_topics())

    def warn_of_mismatches(self) -> None:
        """Log each peer that cannot talk with this node, once."""
        for mismatch in self.node.incompatible():
            if mismatch not in self._warned:
                self._warned.add(mismatch)
                self.node.log("warn", mismatch)

    def check_single_publisher(self, patience: float = 0.0) -> None:
        """Raise NotReady if two publishers report the same for `patience` seconds: two robots would be mixed."""
        deadline = time.monotonic() + patience
        while crowded := self._crowded():
            if time.monotonic() >= deadline:
                raise NotReady(
                    f"{crowded}: two robots cannot be told apart; stop one, or give it another ROS_DOMAIN_ID or "
                    "namespace (a killed one is forgotten after 10 s)"
                )
            self.joints.wait(0.1)

    def foreign_publisher(self) -> str:
        """Return who else sends commands or reports the robot's state, with process and host as far as known; empty if
        nobody does."""
        for publisher in self.commands:
            if others := publisher.other_writers(process=True):
                return f"{' and '.join(others)} sends commands on {publisher.topic} too"
        return self._crowded(process=True)

    def unmatched_topics(self) -> str:
        """Return that nobody subscribes to the commands, and what to look at; empty if somebody does."""
        deaf = [publisher.topic for publisher in self.commands if not publisher.matched]
        return f"nobody listens on {' and '.join(deaf)}; {self.executor(deaf[0])}" if deaf else ""

    def executor(self, topic: str) -> str:
        """Return what must run so that commands on a topic are executed."""
        name = topic.rpartition("/")[0].strip("/").rpartition("/")[2]
        return (
            f"is controller {name!r} active (`ros2 control list_controllers`, `ros2 control switch_controllers "
            f"--activate {name}`)? For a rehearsal: robot-rl twin {self.robot.name}"
        )

    def _reports(self) -> list[Subscription]:
        """Return the topics on which only the robot may send."""
        return [self.joints, *self.poses.values(), *self.images.values()]

    def _crowded(self, process: bool = False) -> str:
        """Return a topic with two publishers, and their nodes; empty if there is none."""
        for subscription in self._reports():
            if len(subscription.writers()) > (self._parts() if subscription is self.joints else 1):
                return f"{' and '.join(subscription.writers(process))} send on {subscription.topic}"
        return ""

    def _parts(self) -> int:
        """Return the number of publishers that together report the joints."""
        return 1

    def _missing(self) -> list[str]:
        missing = self._missing_state()
        for name, s in self.poses.items():
            why = f" ({self._foreign[name]})" if self._foreign.get(name) else ""
            missing += [] if self.accepted[name] else [f"pose on {s.topic}{why}"]
        return missing + [f"picture on {s.topic}" for s in self.images.values() if s.latest is None]


def seconds(stamp: Any) -> float:
    """Return a message's stamp in s; 0 if it is not set."""
    return float(stamp.sec + 1e-9 * stamp.nanosec)


def _picture(sample: Stamped, camera: str) -> np.ndarray:
    msg = sample.msg
    if msg.encoding not in ("rgb8", "bgr8"):
        raise UserError(f"camera {camera!r} sends {msg.encoding!r}; rgb8 or bgr8 is needed")
    rows = np.frombuffer(msg.data, np.uint8).reshape(msg.height, msg.step)[:, : 3 * msg.width]
    picture = rows.reshape(msg.height, msg.width, 3)
    return picture[..., ::-1] if msg.encoding == "bgr8" else picture
