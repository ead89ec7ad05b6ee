"""Twin of an arm: joints, gripper, and an object tracker with errors."""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from real.bus import Node, Stamped, Subscription, make, qos
from real.bus.layout import template
from real.bus.stamps import stamp, stamped
from real.drivers.names import driver_names, frames
from real.topics import HOLD_TOPIC, TEXT
from real.twin.base import STATE, Twin, pose
from real.twin.faults import SILENCE, Fault
from robot_rl.interface.driver import ForwardPosition, JointTopics
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import matrix_to_quat
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.parameters import OBJECT, parameters
from sim.tasks.base import Task

logger = logging.getLogger(__name__)
HANDING = 2.0
"""Time for which an object is held between the fingers, s."""
TRUTH_TOPIC = "twin/{object}/pose"
"""geometry_msgs/PoseStamped: true pose of an object, without the tracker's error."""


ARM = {
    "robot.action_delay": 0.06, "robot.stiffness_scale": 0.7, "robot.damping_scale": 1.35, "robot.joint_friction": 0.8,
    "<object>.mass": 0.35, "<object>.size": 0.027, "<object>.friction": 0.55,
    "<object>.bias_x": 0.018, "<object>.bias_y": -0.015, "<object>.bias_z": 0.003,
    "sensor.object_noise": 0.0025, "sensor.object_delay": 0.06, "sensor.joint_noise": 0.0006,
}  # fmt: skip
"""Values of the parameters of an arm's twin, outside the ranges of panda-lift; a test compares them. `<object>` stands
for each object of the scene."""


@dataclass(frozen=True)
class HiddenArm:
    """Hidden dynamics of an arm's twin."""

    values: Mapping[str, float] = field(default_factory=lambda: dict(ARM))
    """Values by parameter or pattern of the table in `sim.parameters`."""
    object_rate: float = 30.0
    """Rate of the object tracker, Hz; in training each control period (20 Hz) has a new pose."""
    faults: tuple[Fault, ...] = ()
    """Faults beyond these: a run with any says nothing about the policy."""

    def of(self, task: Task) -> dict[str, float]:
        """Return the values by parameter for the objects of a task.

        Sizes change only where the task randomizes them, since the success tests of other tasks depend on them. The
        tracker's error of each further object is rotated by another third of a turn about the vertical axis, so that
        relative poses have errors too.
        """
        known = parameters(robots.get(task.interface.robot), task.scene)
        varied = {r.parameter for r in task.randomization}
        values = {name: value for name, value in self.values.items() if OBJECT not in name}
        for name in known:
            pattern = known[name].name
            if OBJECT in pattern and pattern in self.values and (name in varied or not name.endswith(".size")):
                values[name] = self.values[pattern]
        for k, thing in enumerate(task.scene.poses):
            x, y = (values.get(f"{thing}.bias_{axis}", 0.0) for axis in "xy")
            cos, sin = math.cos(2 * math.pi * k / 3), math.sin(2 * math.pi * k / 3)
            values |= {f"{thing}.bias_x": x * cos - y * sin, f"{thing}.bias_y": x * sin + y * cos}
        return values


class ArmTwin(Twin):
    """Simulated arm that follows streamed joint positions.

    Twins of drivers with other messages override `subscribe`, `positions` and, with a gripper, `opening`."""

    gripper: Subscription | None
    """Subscription of the gripper's commands; None: there is none."""

    def __init__(
        self, node: Node, task: Task, hidden: HiddenArm | None = None, seed: int = 0, cameras: bool = True,
        mjcf: str = "",
    ):  # fmt: skip
        # In real time, one engine tick must last one command period of the robot.
        period = 1 / robots.get(task.interface.robot).command_rate
        scene = replace(task.scene, timestep=min(task.scene.timestep, period))
        self.hidden = hidden or HiddenArm()
        super().__init__(node, task, scene, seed, cameras, mjcf, self.hidden.of(task), self.hidden.faults)
        ros = self.robot.driver
        if not isinstance(ros, JointTopics):
            raise ConfigError(
                f"robot {self.robot.name!r}: {type(self).__name__} sends joint states, but the driver's config "
                f"{type(ros).__name__} is not below JointTopics; make it so"
            )
        self.names, self.frame = list(driver_names(node, self.robot)), frames(node, self.robot)[0]
        """Names that the real robot's driver gives to the joints and the base frame."""
        self.states = node.publisher("sensor_msgs/msg/JointState", ros.joint_states, STATE)
        zero = np.zeros(len(self.names))
        fields = {"name": self.names, "position": zero, "velocity": zero, "effort": zero}
        self._layout = template("sensor_msgs/msg/JointState", header={"frame_id": self.frame}, **fields)
        kind, names = "geometry_msgs/msg/PoseStamped", task.scene.poses
        self._pose = template(kind, header={"frame_id": self.frame})
        self.poses = {name: node.publisher(kind, ros.object_pose.format(object=name), STATE) for name in names}
        self.truths = {name: node.publisher(kind, TRUTH_TOPIC.format(object=name), STATE) for name in names}
        self.joints = {
            name: node.publisher("sensor_msgs/msg/JointState", ros.object_joints.format(object=name), STATE)
            for name in task.scene.joints
        }
        """Publishers of the own joints of objects, such as a drawer's slide."""
        self.gripper = None
        self._ignored: list[Subscription] = []
        """Subscriptions with a command that was not valid, of which a warning told."""
        self.subscribe()
        self.target = torch.tensor(self.robot.home).view(1, 1, -1)
        """Joint positions that the servos follow, (1, 1, J) rad."""
        self.width = torch.full((1, 1, 1), self.robot.gripper.width if self.robot.gripper else 0.0)
        self._delayed = deque([(self.target, self.width)], maxlen=self.faults.delay + 1)
        """Commands of the last ticks; the oldest of them is applied."""
        self._newest: Any = None
        self._commanded = -math.inf
        """Newest command, and the tick in which it arrived."""
        rate = self.robot.command_rate
        self._every_object = round(rate / self.hidden.object_rate)
        self._seen: deque[dict[str, np.ndarray]] = deque(maxlen=1 + round(self._value("sensor.object_delay") * rate))
        self._bias = {name: np.array([self._value(f"{name}.bias_{axis}") for axis in "xyz"]) for name in names}
        """Constant error of the tracker for each object, (3,) m."""
        self.place(seed, robot_too=True)
        self._kinematics = Kinematics(self.robot)
        self._handed, self._handing = "", 0
        """Object that a person holds between the fingers, and for how many ticks."""
        self.hold_request = node.subscribe(TEXT, HOLD_TOPIC, qos.DEFAULT, self._on_hold)

    def _on_hold(self, sample: Stamped) -> None:
        if sample.msg.data in self.poses:
            self._handed, self._handing = sample.msg.data, round(HANDING * self.robot.command_rate)

    def _hand_over(self) -> None:
        """Keep an object between the fingers, in the directions of the hand."""
        self._handing -= 1
        place, turn = self._kinematics.forward(self.engine.joint_state()[0])
        self.engine.place(self._handed, torch.cat([place, matrix_to_quat(turn)], 1).double().numpy())

    def subscribe(self) -> None:
        """Subscribe `command` and, with a gripper, `gripper` to the messages of the robot's driver."""
        ros = self.robot.driver
        if not isinstance(ros, ForwardPosition):
            raise ConfigError(
                f"robot {self.robot.name!r}: {type(self).__name__} follows ForwardPosition's messages, not those of "
                f"{type(ros).__name__}; write a subclass with subscribe and positions, see docs/add-a-driver.md"
            )
        self.command = self.node.subscribe("std_msgs/msg/Float64MultiArray", ros.command, qos.COMMAND)
        self.gripper = self.node.subscribe("std_msgs/msg/Float64MultiArray", ros.gripper_command, qos.COMMAND)

    def positions(self, message: Any) -> ArrayLike:
        """Return the joint positions (J,), rad, that the newest message commands; called in each tick."""
        return message.data

    def opening(self, message: Any) -> ArrayLike:
        """Return the distance between the fingers, m, that the gripper's newest message commands."""
        return message.data

    def place(self, seed: int, robot_too: bool = False) -> None:
        """Place the objects for episode `seed`; with `robot_too`, also reset the robot to its home position."""
        objects = self._draw(seed).objects
        if robot_too:
            self.engine.reset(np.array([0]), np.array([self.robot.home]), objects)
        else:
            for name, place in objects.items():
                self.engine.place(name, place)
            self._seen.clear()  # delayed poses are from before the reset

    def tick(self, count: int) -> None:
        """Follow the newest command; publish the joint state, and object poses at the tracker's rate."""
        self.target = self._latest(self.command, self.positions, self.target)
        self.width = self._latest(self.gripper, self.opening, self.width)
        if (newest := self.command.latest) is not self._newest:
            if count - self._commanded > SILENCE * self.robot.command_rate:
                self.faults.switch(count)
            self._newest, self._commanded = newest, count
        self._delayed.append((self.target, self.width))
        if self._handing:
            self._hand_over()
        target, width = self._delayed[0]
        self.engine.step(target + self.faults.shift(count), width)
        self.publish(count)

    def begin(self) -> None:
        super().begin()
        self._seen.clear()

    def publish(self, count: int) -> None:
        """Publish joints, and at the tracker's rate objects."""
        if self.faults.due(count):
            self._publish_joints()
        self._seen.append({name: self.engine.object_pose(name)[0].numpy().copy() for name in self.poses})
        if count % self._every_object == 0:
            self._publish_objects(self._seen[0])
            for name, moved in self.engine.object_joints().items():
                names = list(next(o.joints for o in self.task.scene.objects if o.name == name))
                position = moved[0].double().tolist()
                fields = {"name": names, "position": position, "velocity": [], "effort": []}
                stamps = {"stamp": stamp(), "frame_id": self.frame}
                self.joints[name].publish(make("sensor_msgs/msg/JointState", header=stamps, **fields))

    def _latest(
        self, subscription: Subscription | None, read: Callable[[Any], ArrayLike], current: torch.Tensor
    ) -> torch.Tensor:
        """Return the newest command if it is valid, else the `current` one. As in a forward controller, no command
        times out."""
        if subscription is None or (sample := subscription.latest) is None:
            return current
        data = np.atleast_1d(np.asarray(read(sample.msg)))
        if data.shape != (current.shape[-1],) or not np.isfinite(data).all():
            if subscription not in self._ignored:  # once, as it comes in every tick
                self._ignored.append(subscription)
                wanted = f"{current.shape[-1]} finite numbers"
                logger.warning("ignored a command on %s: %s, not %s", subscription.topic, data.tolist(), wanted)
            return current
        return torch.from_numpy(data.astype(np.float32)).view(1, 1, -1)

    def _publish_joints(self) -> None:
        q, v = self.engine.joint_state()
        fingers = self.robot.fingers
        half = float(self.engine.gripper_width()[0]) / max(1, len(fingers))
        noise = self.rng.normal(0, self._value("sensor.joint_noise"), q.shape[1])
        joints, speeds = self.faults.observe(q[0].double().numpy() + noise, v[0].double().numpy())
        position = np.concatenate([joints, np.full(len(fingers), half)])
        velocity = np.concatenate([speeds, np.zeros(len(fingers))])
        self.states.publish(self._layout.write(position=position, velocity=velocity, **stamped()))

    def _publish_objects(self, poses: dict[str, np.ndarray]) -> None:
        for name, true in poses.items():
            error = self._bias[name] + self.rng.normal(0, self._value("sensor.object_noise"), 3)
            for publisher, position in ((self.poses[name], true[:3] + error), (self.truths[name], true[:3])):
                numbers = pose("pose", position.tolist(), true[3:].tolist())
                publisher.publish(self._pose.write(**stamped(), **numbers))
