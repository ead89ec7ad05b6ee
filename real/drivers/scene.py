"""Scene of a robot: poses of tracked objects, and pictures of cameras."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Stamped, qos
from real.bus.stamps import Delay, seconds
from real.drivers.names import frames
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import OF_JOINTS
from robot_rl.util.errors import UserError

UNIT = 0.1
"""Maximum deviation of a quaternion's norm from 1; a quaternion of zeros is no orientation."""


class Scene:
    """Subscriber of cameras and of views of objects: poses, and joints of those named with `.joints`."""

    def __init__(self, node: Node, robot: RobotSpec, objects: Sequence[str], cameras: Sequence[str]):
        self.node = node
        self.accepted = dict.fromkeys(objects, 0)
        """Number of accepted messages of each view."""
        self.rejected = self.repeated = 0
        """`rejected`: number of messages that are non-finite, without orientation, or in another frame. `repeated`:
        number of those that were ignored because they repeat the previous stamp."""
        self.needed: tuple[str, ...] = ()
        """Cameras that the policy sees; the robot is not ready before their first pictures."""
        self._seen: dict[str, tuple[Tensor, float]] = {}
        """Newest accepted pose (1, 7) or joints (1, J) of each view, and its arrival less the delay that its stamp
        tells, s."""
        self._delays = {name: Delay() for name in objects}
        self._stamps: dict[str, float] = {}
        """Stamp of the newest message of each view, s."""
        self._frames = frames(node, robot)
        self._foreign: dict[str, str] = {}
        """Error message about the frame of each object's poses; empty if the frame is valid."""
        image, pose, kind = robot.driver.image, robot.driver.object_pose, "geometry_msgs/msg/PoseStamped"
        self.images = {c: node.subscribe("sensor_msgs/msg/Image", image.format(camera=c), qos.SENSOR) for c in cameras}
        jointed, joints = [name for name in objects if name.endswith(OF_JOINTS)], robot.driver.object_joints
        # Messages may arrive during the next statements.
        self.poses = {
            name: node.subscribe(kind, pose.format(object=name), qos.SENSOR, partial(self._on_pose, name))
            for name in objects
            if name not in jointed
        }
        self.poses |= {
            name: node.subscribe(
                "sensor_msgs/msg/JointState", joints.format(object=name.removesuffix(OF_JOINTS)), qos.SENSOR,
                partial(self._on_joints, name),
            )
            for name in jointed
        }  # fmt: skip

    def _on_pose(self, name: str, sample: Stamped) -> None:
        p, q = sample.msg.pose.position, sample.msg.pose.orientation
        pose = torch.tensor([[p.x, p.y, p.z, q.w, q.x, q.y, q.z]], dtype=torch.float32)
        foreign = self._foreign_frame(sample.msg.header.frame_id)
        if foreign and foreign != self._foreign.get(name):
            self.node.log("warn", f"refused the pose of {name}: {foreign}")
        self._foreign[name] = foreign
        norm = pose[:, 3:].norm(dim=1, keepdim=True)
        valid = not foreign and bool(pose.isfinite().all()) and bool(abs(norm - 1.0) < UNIT)
        self._accept(name, sample, torch.cat([pose[:, :3], pose[:, 3:] / norm], 1), valid)

    def _on_joints(self, name: str, sample: Stamped) -> None:
        joints = torch.tensor(np.asarray(sample.msg.position), dtype=torch.float32)[None]
        self._accept(name, sample, joints, joints.numel() > 0 and bool(joints.isfinite().all()))

    def _accept(self, name: str, sample: Stamped, values: Tensor, valid: bool) -> None:
        """Keep the newest message of a view unless it repeats the last one or is not valid."""
        stamp = seconds(sample.msg.header.stamp)
        if stamp > 0 and stamp == self._stamps.get(name):
            self.repeated += 1
            return
        self._stamps[name] = stamp
        if not valid:
            self.rejected += 1
            return
        self._seen[name] = values, sample.received - self._delays[name](stamp, sample.received)
        self.accepted[name] += 1

    def _foreign_frame(self, frame: str) -> str:
        """Return an error for a frame other than the robot's base; empty for the base and for an empty frame name."""
        if frame.removeprefix("/") in ("", *self._frames):
            return ""
        return (
            f"in frame {frame!r}, not in the robot's base frame {self._frames[0]!r}: transform it before publishing "
            "(tf2), or name the frame in the spec's driver.base_frames if it is the base"
        )

    def object_poses(self) -> tuple[dict[str, Tensor], float]:
        """Return each object's pose (1, 7), position and quaternion w x y z, or joints (1, J), and the oldest arrival,
        s. The dict is empty until all of them are known."""
        seen = {name: self._seen[name] for name in self.poses if name in self._seen}
        if len(seen) < len(self.poses):
            return {}, -float("inf")
        return {name: pose for name, (pose, _) in seen.items()}, min((t for _, t in seen.values()), default=math.inf)

    def newest(self) -> dict[str, tuple[np.ndarray, float]]:
        """Return the newest position (3,) m and its arrival, s, of each object whose pose is known."""
        return {name: (pose[0, :3].numpy(), arrival) for name, (pose, arrival) in self._seen.items()}

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
        """Return the arrival of the latest picture, s; minus infinity before the first."""
        sample = self.images[camera].latest
        return sample.received if sample is not None else -float("inf")

    def missing(self) -> list[str]:
        """Return descriptions of the object poses and pictures that have not arrived yet."""
        missing = []
        for name, s in self.poses.items():
            why = f" ({self._foreign[name]})" if self._foreign.get(name) else ""
            what = "joints" if name.endswith(OF_JOINTS) else "pose"
            missing += [] if self.accepted[name] else [f"{what} on {s.topic}{why}"]
        return missing + [f"picture on {s.topic}" for s in self.images.values() if s.latest is None]
