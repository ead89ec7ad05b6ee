"""Base class of drivers: the robot's newest state as named views, and sending commands."""

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Publisher, Stamped, Subscription, qos
from real.control.clock import prefer_realtime_bus
from real.topics import JOINT_PREFIX
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import RobotState
from robot_rl.util.errors import ConfigError, UserError

UNIT = 0.1
"""Maximum deviation of a quaternion's norm from 1; a quaternion of zeros is no orientation."""
SLACK = 0.1
"""Allowance for encoder noise in the check for jumps, rad."""
LATENESS = 0.02
"""Maximum delay of a joint state relative to the next one, s."""
OVERSPEED = 1.2
"""Maximum ratio of the speed that two joint states imply to the joint's speed limit."""
MANY, WITHIN = 3, 1.0
"""`MANY` refused joint states within `WITHIN` seconds are a fault."""


class NotReady(UserError):  # noqa: N818
    """The robot is not ready for control: a state, picture, subscriber or person is missing, or a topic is shared."""


@dataclass(frozen=True)
class JointReading:
    """One state of all joints, in the spec's order."""

    position: np.ndarray
    """Joint positions, (J,) rad."""
    velocity: np.ndarray
    """Joint velocities, (J,) rad/s."""
    gripper: float
    """Finger distance, m."""
    received: float
    """Arrival, local monotonic time, s."""

    @property
    def upright(self) -> float:
        """Return the cosine of the trunk's tilt; 1 for a fixed robot."""
        return 1.0


class JumpCheck:
    """Refuse joint states that the robot cannot have reached. They come from another robot or a broken encoder."""

    def __init__(self, robot: RobotSpec):
        self.speed = OVERSPEED * np.array([joint.velocity for joint in robot.joints])
        """Largest plausible speed of each joint, (J,) rad/s."""
        self.count = 0
        """Number of refused states."""
        self._times: deque[float] = deque(maxlen=MANY)

    def refuses(self, moved: np.ndarray, since: np.ndarray | float, now: float, joints: np.ndarray | slice) -> bool:
        """Return whether joints cannot have moved by `moved`, rad, in the `since` seconds after their last accepted
        state. The longer this time, the more motion is accepted, so a robot moved by hand is accepted again."""
        if not (np.abs(moved) > SLACK + self.speed[joints] * (since + LATENESS)).any():
            return False
        self.count += 1
        self._times.append(now)
        return True

    def many(self, now: float) -> bool:
        """Return whether `MANY` states were refused within the last `WITHIN` seconds."""
        return len(self._times) == MANY and now - self._times[0] <= WITHIN

    def forget(self) -> None:
        """Forget refused states, after the robot was placed elsewhere."""
        self._times.clear()


class Driver(ABC):
    """Subscriber of a robot's joint states, object poses and cameras, and publisher of commands, unless `dry_run`."""

    joints: Subscription
    command: Publisher
    """Publisher of commands; not set in a dry run."""
    needed: tuple[str, ...] = ()
    """Cameras that the policy sees; the driver is not ready before their first pictures."""

    def __init__(
        self, node: Node, robot: RobotSpec, objects: Sequence[str] = (), cameras: Sequence[str] = (),
        dry_run: bool = False,
    ):  # fmt: skip
        self.node, self.robot, self.dry_run = node, robot, dry_run
        self._raised = dry_run
        """The bus's threads have real-time priority, or need none in a dry run."""
        self.commands: list[Publisher] = []
        """Publishers of commands; each should be the only publisher on its topic."""
        self.jumps = JumpCheck(robot)
        self.accepted = dict.fromkeys(objects, 0)
        """Number of accepted poses of each object."""
        self._seen: dict[str, tuple[Tensor, float]] = {}
        """Newest accepted pose (1, 7) of each object, and its arrival, monotonic s."""
        image, pose, kind = robot.ros.image, robot.ros.object_pose, "geometry_msgs/msg/PoseStamped"
        self.images = {c: node.subscribe("sensor_msgs/msg/Image", image.format(camera=c), qos.SENSOR) for c in cameras}
        self.rejected = 0
        """Number of malformed or non-finite joint states."""
        self.repeated = 0
        """Number of joint states and object poses that were ignored because they repeat the previous stamp."""
        self._stamps: dict[str, float] = {}
        """Stamp of the newest pose of each object, s."""
        self.rejected_poses = 0
        """Number of object poses that are non-finite, without orientation, or in another frame."""
        self._frames = frames(node, robot)
        self._foreign: dict[str, str] = {}
        """Error message about the frame of each object's poses; empty if the frame is valid."""
        self._warned: set[str] = set()
        # Poses may arrive during the next statement.
        self.poses = {
            name: node.subscribe(kind, pose.format(object=name), qos.SENSOR, partial(self._on_pose, name))
            for name in objects
        }
        self._connect()

    @abstractmethod
    def _connect(self) -> None:
        """Subscribe to the joint states and, unless `dry_run`, open the publishers of commands."""

    @abstractmethod
    def reading(self) -> JointReading | None:
        """Return the latest complete joint state, None before the first."""

    def next_reading(self, timeout: float) -> JointReading | None:
        """Wait up to `timeout` s for a joint state that is newer than this call; return the latest. After a suspension
        of this process, the last state is old although the robot still sends."""
        now = time.monotonic()
        began, deadline = now, now + timeout
        while ((reading := self.reading()) is None or reading.received < began) and now < deadline:
            self.joints.wait(deadline - now)
            now = time.monotonic()
        return reading

    @abstractmethod
    def state(self, last_action: Tensor) -> RobotState | None:
        """Return the robot's state as named views (n = 1); None while a part of it is missing."""

    @abstractmethod
    def send(self, position: np.ndarray, gripper: float) -> None:
        """Publish a command: joint positions (J,) in rad and the gripper width in m."""

    def damp(self) -> None:
        """Damp all joints; only for a robot that sinks down instead of holding its position."""
        raise NotImplementedError(f"{self.robot.name} holds its position")

    def objection(self, now: float) -> str:
        """Return the guard's reason for withholding commands from the motors; empty if there is none."""
        return ""

    @property
    def damped(self) -> dict[str, int]:
        """Return the number of times that a guard began to damp the robot, by reason."""
        return {}

    @abstractmethod
    def _missing_state(self) -> list[str]:
        """Return descriptions of the missing parts of the robot's state."""

    def _raise_priority_once(self) -> None:
        """Give the bus's threads real-time priority at the first state."""
        if not self._raised:
            self._raised = True
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
        """Return an error for a frame other than the robot's base; empty for the base and for an empty frame name."""
        if frame.removeprefix("/") in ("", *self._frames):
            return ""
        return (
            f"in frame {frame!r}, not in the robot's base frame {self._frames[0]!r}: transform it before publishing "
            "(tf2), or name the frame in the spec's ros.base_frames if it is the base"
        )

    def object_poses(self) -> tuple[dict[str, Tensor], float]:
        """Return each object's pose (1, 7), position and quaternion w x y z, and the oldest arrival, monotonic s. The
        dict is empty until the poses of all objects are known."""
        seen = {name: self._seen[name] for name in self.poses if name in self._seen}
        if len(seen) < len(self.poses):
            return {}, -float("inf")
        return {name: pose for name, (pose, _) in seen.items()}, min((t for _, t in seen.values()), default=math.inf)

    def image(self, camera: str) -> np.ndarray | None:
        """Return the latest picture (H, W, 3) rgb8, None before the first; UserError for other encodings."""
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
        """Return the arrival of the latest picture, monotonic s; minus infinity before the first."""
        sample = self.images[camera].latest
        return sample.received if sample is not None else -float("inf")

    # ---- start -------------------------------------------------------------------------------------------------
    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait for a complete state, a picture of each camera and a subscriber of the commands. Raise NotReady if any
        of them is missing after `timeout` s, or if a topic has two publishers."""
        deadline = time.monotonic() + timeout
        missing = self._missing()
        while missing and time.monotonic() < deadline:
            self.joints.wait(0.1)
            missing = self._missing()
        if missing:
            advice = f"is the robot's driver running on this domain (for a rehearsal: robot-rl twin {self.robot.name})?"
            if blind := [self.images[c].topic for c in self.needed if self.images[c].latest is None]:
                advice = f"the policy sees {' and '.join(blind)}: start the camera (a twin has those of its task: "
                advice += "robot-rl twin --task, task:=)"
            elif all(what.startswith("picture") for what in missing):
                advice = "start the camera, or go on without pictures (finetune --no-camera, deploy --video-episodes 0)"
            mismatches = "; ".join(self.node.incompatible())
            raise NotReady(f"no {' and no '.join(missing)} within {timeout:g} s; {advice} {mismatches}".rstrip())
        self.warn_of_mismatches()
        for publisher in self.commands:
            if others := publisher.other_writers():
                raise NotReady(f"{', '.join(others)} already sends commands on {publisher.topic}; stop it first")
        self.check_single_publisher(deadline - time.monotonic())  # DDS forgets a killed publisher after some seconds
        if not self.node.wait_for(lambda: not self.unmatched_topics(), max(1.0, deadline - time.monotonic())):
            raise NotReady(self.unmatched_topics())

    def warn_of_mismatches(self) -> None:
        """Log each peer with an incompatible type or QoS once."""
        for mismatch in self.node.incompatible():
            if mismatch not in self._warned:
                self._warned.add(mismatch)
                self.node.log("warn", mismatch)

    def check_single_publisher(self, patience: float = 0.0) -> None:
        """Raise NotReady if a topic has two publishers, whose states would be mixed, for `patience` seconds."""
        deadline = time.monotonic() + patience
        while crowded := self._crowded():
            if time.monotonic() >= deadline:
                raise NotReady(
                    f"{crowded}: two robots cannot be told apart; stop one, or give it another ROS_DOMAIN_ID or "
                    "namespace (a killed one is forgotten after 10 s)"
                )
            self.joints.wait(0.1)

    def foreign_publisher(self) -> str:
        """Return other publishers of commands or the robot's state, with process and host; empty if none."""
        for publisher in self.commands:
            if others := publisher.other_writers(process=True):
                return f"{' and '.join(others)} sends commands on {publisher.topic} too"
        return self._crowded(process=True)

    def unmatched_topics(self) -> str:
        """Return an error, with advice, if a topic of commands has no subscriber; empty if each has one."""
        deaf = [publisher.topic for publisher in self.commands if not publisher.matched]
        return f"nobody listens on {' and '.join(deaf)}; {self.executor(deaf[0])}" if deaf else ""

    def executor(self, topic: str) -> str:
        """Return advice on the process that must run to execute commands on a topic."""
        name = topic.rpartition("/")[0].strip("/").rpartition("/")[2]
        return (
            f"is controller {name!r} active (`ros2 control list_controllers`, `ros2 control switch_controllers "
            f"--activate {name}`)? For a rehearsal: robot-rl twin {self.robot.name}"
        )

    def _reports(self) -> list[Subscription]:
        """Return the subscriptions of topics on which only the robot may publish."""
        return [self.joints, *self.poses.values(), *self.images.values()]

    def _crowded(self, process: bool = False) -> str:
        """Return a text that names a topic with two publishers, and their nodes; empty if no topic has two."""
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
    """Return a message's stamp in s; 0 if the stamp is not set."""
    return float(stamp.sec + 1e-9 * stamp.nanosec)


# ---- names in the driver's messages -----------------------------------------------------------------------------
def prefix(node: Node) -> str:
    """Return the joint prefix that a node was started with."""
    given = node.parameters.get(JOINT_PREFIX) or ""
    if not isinstance(given, str):
        raise ConfigError(f"{JOINT_PREFIX} is {given!r}, which is no text; write {JOINT_PREFIX}:='\"{given}\"'")
    return given


def driver_names(node: Node, robot: RobotSpec) -> tuple[str, ...]:
    """Return the driver's names of the robot's joints, then of its fingers."""
    return robot.driver_names(prefix(node))


def frames(node: Node, robot: RobotSpec) -> tuple[str, ...]:
    """Return the accepted names of the robot's base frame."""
    names = robot.ros.base_frames
    return tuple(dict.fromkeys((*(prefix(node) + name for name in names), *names)))


def suggestion(robot: RobotSpec, names: Collection[str]) -> str:
    """Return advice if the spec has none of the driver's joint names; empty if it has one."""
    own = robot.driver_names()
    if not set(own).isdisjoint(names):
        return ""
    for name in names:
        given_prefix = name.removesuffix(own[0])
        if name.endswith(own[0]) and {given_prefix + other for other in own[: len(robot.joints)]} <= set(names):
            argument = f"{JOINT_PREFIX}:={given_prefix}"
            return f"they have a prefix: {argument} (--ros-args -p {argument} without a launch file)"
    return f"a common prefix is {JOINT_PREFIX}:=PREFIX, and other names go into the spec's ros.joint_names"
