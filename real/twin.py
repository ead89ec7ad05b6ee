"""The twin: a simulated robot behind the real robot's topics, with dynamics the policy has not seen.

Topics, types, rates and names are those of the robot's spec; nothing tells a policy node that this is no robot. One
more topics stand for a person: `twin/reset` (std_msgs/String, a seed as JSON) puts the objects back, and
`twin/<object>/pose` is where they really are, as eyes see it; the robot's tracker reports something else.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real.bus import Node, Stamped, make, qos
from real.clock import Ticker, prefer_realtime
from robot_rl.spec import RosInterface
from sim.engines.mujoco import MujocoEngine
from sim.randomization import episode_uniforms
from sim.tasks.base import PLACE, Task

logger = logging.getLogger(__name__)
RESET_TOPIC = "twin/reset"
TRUTH_TOPIC = "twin/{object}/pose"


@dataclass(frozen=True)
class HiddenDynamics:
    """What is different about this robot; outside or at the edge of what training randomizes."""

    action_delay: float = 0.06
    """s; training sees at most 0.05"""
    stiffness_scale: float = 0.7
    """Servo stiffness; training sees 0.75 to 1.3"""
    damping_scale: float = 1.2
    """Servo damping; training sees 0.75 to 1.3"""
    joint_friction: float = 0.8
    """N m; training sees at most 0.5"""
    object_mass: float = 0.2
    """kg"""
    object_size: float = 0.024
    """Half edge, m"""
    object_friction: float = 0.7
    object_bias: tuple[float, float, float] = (0.018, -0.015, 0.003)
    """Error of the object tracker, m; training sees at most 0.005 on an axis"""
    object_noise: float = 0.0015
    """Standard deviation of the object tracker, m"""
    object_latency: float = 0.04
    """s"""
    joint_noise: float = 0.0003
    """rad"""
    object_rate: float = 30.0
    """Hz"""
    camera_rate: float = 20.0
    """Hz"""
    image_size: int = 96
    """pixels"""


class Twin:
    """Runs one simulated robot in real time until `close`."""

    def __init__(
        self,
        node: Node,
        task: Task,
        hidden: HiddenDynamics | None = None,
        seed: int = 0,
        cameras: bool = True,
        mjcf: str = "",
    ):
        from robot_rl.robots import robots

        self.node, self.task, self.hidden = node, task, hidden or HiddenDynamics()
        self.robot = robots.get(task.interface.robot)
        # One engine tick is one command period of the robot.
        self.engine = MujocoEngine(self.robot, task.scene, 1, threads=1, mjcf=mjcf)
        self.rng = np.random.default_rng(seed)
        self.cameras = [c.name for c in task.scene.cameras] if cameras else []
        ros = self.robot.ros
        assert isinstance(ros, RosInterface)
        self.states = node.publisher("sensor_msgs/msg/JointState", ros.joint_states, qos.SENSOR)
        self.poses = {
            b.name: node.publisher("geometry_msgs/msg/PoseStamped", ros.object_pose.format(object=b.name), qos.SENSOR)
            for b in task.scene.boxes
        }
        self.truths = {
            name: node.publisher("geometry_msgs/msg/PoseStamped", TRUTH_TOPIC.format(object=name), qos.SENSOR)
            for name in self.poses
        }
        self.images = {
            c: node.publisher("sensor_msgs/msg/Image", ros.image.format(camera=c), qos.SENSOR) for c in self.cameras
        }
        self.command = node.subscribe("std_msgs/msg/Float64MultiArray", ros.command, qos.COMMAND)
        self.gripper = node.subscribe("std_msgs/msg/Float64MultiArray", ros.gripper_command, qos.COMMAND)
        self.reset_request = node.subscribe("std_msgs/msg/String", RESET_TOPIC, qos.DEFAULT, self._on_reset)
        self._requests: deque[int] = deque()
        self._closing = threading.Event()
        self.timing: dict[str, Any] = {}
        self._apply_hidden()
        self.place(seed, robot_too=True)

    def _apply_hidden(self) -> None:
        ids = np.array([0])
        h = self.hidden
        values = {
            "robot.action_delay": h.action_delay,
            "robot.stiffness_scale": h.stiffness_scale,
            "robot.damping_scale": h.damping_scale,
            "robot.joint_friction": h.joint_friction,
        }
        for box in self.task.scene.boxes:
            values |= {f"{box.name}.mass": h.object_mass, f"{box.name}.size": h.object_size}
            values[f"{box.name}.friction"] = h.object_friction
        for name, value in values.items():
            self.engine.parameters[name](ids, np.array([value]))

    def _on_reset(self, sample: Stamped) -> None:
        try:
            self._requests.append(int(json.loads(sample.msg.data)["seed"]))
        except (ValueError, KeyError, TypeError):
            logger.warning("ignored a malformed message on %s: %r", RESET_TOPIC, sample.msg.data)

    def place(self, seed: int, robot_too: bool = False) -> None:
        """Put the objects where episode `seed` wants them, and at the start the robot at home."""
        places = [r for r in self.task.randomization if r.parameter.split(".")[-1] in PLACE]
        u = episode_uniforms(seed, 0, len(places))
        drawn = {r.parameter: float(r.quantile(u[k : k + 1])[0]) for k, r in enumerate(places)}
        objects = {}
        for box in self.task.scene.boxes:
            yaw = drawn.get(f"{box.name}.yaw", 0.0)
            x, y = drawn.get(f"{box.name}.x", 0.5), drawn.get(f"{box.name}.y", 0.0)
            z = drawn.get(f"{box.name}.z", self.hidden.object_size)
            objects[box.name] = np.array([[x, y, z, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]])
        if robot_too:
            self.engine.reset(np.array([0]), np.array([self.robot.home]), objects)
        else:
            for name, pose in objects.items():
                self.engine.place(name, pose)

    def run(self) -> None:
        """Step, publish, repeat, at the robot's rate; returns after `close`."""
        prefer_realtime()
        ticker = Ticker(1 / self.robot.command_rate)
        target = torch.tensor(self.robot.home).view(1, 1, -1)
        width = torch.full((1, 1, 1), self.robot.gripper.width if self.robot.gripper else 0.0)
        every_object = round(self.robot.command_rate / self.hidden.object_rate)
        every_image = round(self.robot.command_rate / self.hidden.camera_rate)
        history: deque[dict[str, np.ndarray]] = deque(
            maxlen=1 + round(self.hidden.object_latency * self.robot.command_rate)
        )
        count = 0
        while not self._closing.is_set():
            ticker.wait()
            while self._requests:
                self.place(self._requests.popleft())
                history.clear()
            target = self._latest(self.command, target)
            width = self._latest(self.gripper, width)
            self.engine.step(target, width)
            self._publish_joints()
            history.append({name: self.engine.object_pose(name)[0].numpy().copy() for name in self.poses})
            if count % every_object == 0:
                self._publish_objects(history[0])
            if count % every_image == 0:
                self._publish_images()
            count += 1
        self.timing = ticker.timing.summary()

    def close(self) -> None:
        """Let `run` return."""
        self._closing.set()

    def _latest(self, subscription: Any, current: torch.Tensor) -> torch.Tensor:
        """The newest command if it is usable; a forward controller keeps the last one for ever, and so do we."""
        sample = subscription.latest
        if sample is None:
            return current
        data = np.asarray(sample.msg.data)
        if data.shape != (current.shape[-1],) or not np.isfinite(data).all():
            return current
        return torch.from_numpy(data.astype(np.float32)).view(1, 1, -1)

    def _header(self, frame: str) -> dict[str, Any]:
        now = time.time_ns()
        return {"stamp": {"sec": now // 10**9, "nanosec": now % 10**9}, "frame_id": frame}

    def _publish_joints(self) -> None:
        q, v = self.engine.joint_state()
        fingers = self.robot.gripper.joints if self.robot.gripper else ()
        half = float(self.engine.gripper_width()[0]) / max(1, len(fingers))
        noise = self.rng.normal(0, self.hidden.joint_noise, q.shape[1])
        position = np.concatenate([q[0].double().numpy() + noise, np.full(len(fingers), half)])
        velocity = np.concatenate([v[0].double().numpy(), np.zeros(len(fingers))])
        names = [*self.robot.joint_names, *fingers]
        self.states.publish(
            make(
                "sensor_msgs/msg/JointState",
                header=self._header("base"),
                name=names,
                position=position,
                velocity=velocity,
                effort=np.zeros(len(names)),
            )  # fmt: skip
        )

    def _publish_objects(self, poses: dict[str, np.ndarray]) -> None:
        for name, pose in poses.items():
            error = self.hidden.object_bias + self.rng.normal(0, self.hidden.object_noise, 3)
            self.poses[name].publish(self._pose(pose[:3] + error, pose[3:]))
            self.truths[name].publish(self._pose(pose[:3], pose[3:]))

    def _pose(self, position: np.ndarray, quat: np.ndarray) -> Any:
        (px, py, pz), (w, x, y, z) = position.tolist(), quat.tolist()
        orientation = {"x": x, "y": y, "z": z, "w": w}
        pose = {"position": {"x": px, "y": py, "z": pz}, "orientation": orientation}
        return make("geometry_msgs/msg/PoseStamped", header=self._header("base"), pose=pose)

    def _publish_images(self) -> None:
        size = self.hidden.image_size
        for name, publisher in self.images.items():
            if publisher.matched == 0:
                continue
            picture = np.ascontiguousarray(self.engine.render(0, name, size, size))
            publisher.publish(
                make(
                    "sensor_msgs/msg/Image",
                    header=self._header(f"{name}_optical_frame"),
                    height=size,
                    width=size,
                    encoding="rgb8",
                    is_bigendian=0,
                    step=3 * size,
                    data=picture.reshape(-1),
                )  # fmt: skip
            )
