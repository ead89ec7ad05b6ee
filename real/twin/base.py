"""Common loop of all twins: reset requests, physics ticks, camera pictures."""

import gc
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from real.bus import Node, Publisher, QoS, Stamped, Subscription, make, qos
from real.bus.stamps import stamp
from real.conductor import Conductor
from real.control.memory import lock_memory
from real.control.timing import STALL, Ticker, prefer_realtime
from real.topics import FAULTS_TOPIC, INT, NUMBER, RESET_TOPIC, STALL_TOPIC, TEXT
from real.twin.faults import SCALES, Fault, Faults
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UserError
from sim.engines.mujoco import MujocoEngine
from sim.parameters import nominal
from sim.randomization.ranges import with_values
from sim.scenes import Scene
from sim.step.sampling import EpisodeSample, EpisodeSampler
from sim.tasks.base import Task

logger = logging.getLogger(__name__)
STATE = QoS(depth=10, blocking=0.0)
"""Quality of service of states: reliable, as of `joint_state_broadcaster`; publishing never blocks the loop."""
DRAIN = 6.0
"""Longest time for which `drain` waits for the commanding node to end, s."""


class Twin(ABC):
    """Simulated robot in real time. One engine tick lasts one command period of the robot."""

    camera_rate: ClassVar[float] = 20.0
    """Rate of camera pictures, Hz."""
    image_size: ClassVar[int] = 96
    """Height and width of camera pictures, pixels."""
    states: Publisher
    """Publisher of the robot's joint states."""
    command: Subscription
    """Subscription of the robot's commands."""

    def __init__(
        self, node: Node, task: Task, scene: Scene, seed: int, cameras: bool, mjcf: str,
        values: Mapping[str, float] | None = None, faults: Sequence[Fault] = (),
    ):  # fmt: skip
        """`values`: hidden values of parameters in the table of `sim.parameters`. Those that the physics lacks are for
        the twin's own sensors and delays."""
        self.node, self.task = node, task
        self.robot = robots.get(task.interface.robot)
        self.engine = MujocoEngine(self.robot, scene, 1, threads=1, mjcf=mjcf)
        self.seed, self.rng = seed, np.random.default_rng(seed)
        if any(fault.name == "armature" for fault in faults) and not self.engine.model.dof_armature.any():
            raise ConfigError(f"fault armature multiplies the model's, and the model of {self.robot.name} has none")
        self._given = faults
        self.faults = Faults(faults, self.robot.command_rate, self.rng)
        self.values = self._faulty(values or {})
        """Hidden values by parameter."""
        drawn = replace(scene, ground=task.scene.ground)  # which views of the task may read
        hidden = replace(with_values(task, self.values), scene=drawn)
        every, biases = list(range(len(hidden.randomization))), 3 * max(1, len(scene.poses))
        self._sampler = EpisodeSampler(hidden, self.robot, every, biases, 1, seed, torch.device("cpu"))
        self._faults = node.publisher(TEXT, FAULTS_TOPIC, qos.LATCHED)
        if faults:
            self._faults.publish(make(TEXT, data=str(self.faults)))
        self._every_image = round(self.robot.command_rate / self.camera_rate)
        names = [c.name for c in scene.cameras] if cameras else []
        image = self.robot.driver.image
        self.images = {c: node.publisher("sensor_msgs/msg/Image", image.format(camera=c), qos.SENSOR) for c in names}
        self._rendering: dict[str, Future[np.ndarray]] = {}
        self.stall = node.publisher(NUMBER, STALL_TOPIC, STATE)
        self.stalls = 0
        """Number of stalls of this process: ticks that came more than `STALL` s late."""
        self._requests: deque[int] = deque()
        self.reset_request = node.subscribe(INT, RESET_TOPIC, qos.DEFAULT, self._on_reset)
        self._closing = threading.Event()
        self._draining = math.inf
        """End of the wait for the commanding node, monotonic s; infinite before `drain`."""
        self.timing: dict[str, Any] = {}

    @abstractmethod
    def place(self, seed: int) -> None:
        """Reset the scene for episode `seed`, as a person does on a real robot."""

    @abstractmethod
    def tick(self, count: int) -> None:
        """Apply commands, step the physics and publish; `count` numbers the ticks from 0."""

    def begin(self) -> None:
        """Forget earlier publications of the first state: their number depends on how fast the others connect."""
        self.rng = np.random.default_rng(self.seed)
        self.faults = Faults(self._given, self.robot.command_rate, self.rng)

    @abstractmethod
    def publish(self, count: int) -> None:
        """Publish the robot's state at tick `count`."""

    def check_single_publisher(self, seconds: float = 1.0) -> None:
        """Listen for `seconds`; raise UserError if another robot publishes on this twin's topic of joint states."""
        other = self.node.subscribe(self.states.type_name, self.states.topic, qos.SENSOR)
        if other.wait(seconds, after=0):
            raise UserError(
                f"{' and '.join(self.states.other_writers()) or 'another robot'} already sends on {other.topic}: stop "
                "it, or give this twin another ROS_DOMAIN_ID or namespace (--ros-args -r __ns:=/second)"
            )
        other.close()

    def run(self, conductor: Conductor | None = None) -> None:
        """Tick at the robot's rate until `close`, or after `drain` until the robot is no longer commanded; with a
        conductor in lockstep, else in real time."""
        prefer_realtime(43)  # above the guard's priority: a real robot does not depend on this computer's load
        lock_memory()
        # A collection of torch's objects would take tenths of a second.
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for name in list(self.images)[:1]:  # opening OpenGL takes a third of a second
                wait([self.engine.render_later(0, name, self.image_size, self.image_size)])
            with torch.inference_mode():
                self._run_lockstep(conductor) if conductor else self._run()
        finally:
            if conductor:
                conductor.close()
            gc.enable()
            gc.unfreeze()

    def _run(self) -> None:
        ticker = Ticker(1 / self.robot.command_rate)
        count = 0
        while not self._over():
            late = ticker.wait()
            if late > STALL:
                self.stalls += 1
                self.stall.publish(make(NUMBER, data=round(late, 3)))
            if self._requests:
                self._place_requested()
                ticker.restart()
            self.tick(count)
            if count % self._every_image == 0:
                self._publish_images()
            count += 1
        self.timing = ticker.timing.summary()

    def _run_lockstep(self, conductor: Conductor) -> None:
        count = 0

        def step() -> None:
            nonlocal count
            self._place_requested()
            self.tick(count)
            if count % self._every_image == 0:
                self._publish_images_now()
            count += 1

        def first() -> None:
            self.begin()
            self.publish(0)
            self._publish_images_now()

        goes_on = conductor.begin(first, self._over)
        began = time.monotonic()
        self.begin()
        while goes_on and not self._over():
            conductor.tick(step, self._over)
        seconds = time.monotonic() - began
        self.timing = {"ticks": count, "speed": count / self.robot.command_rate / max(seconds, 1e-9)}

    def _place_requested(self) -> None:
        while self._requests:
            self.place(self._requests.popleft())

    def _over(self) -> bool:
        return self._closing.is_set() or self._drained()

    def close(self) -> None:
        """Make `run` return."""
        self._closing.set()

    def drain(self) -> bool:
        """Make `run` return when the robot is no longer commanded, after `DRAIN` s at the latest; the second call makes
        it return at once. Return whether the robot is commanded now."""
        if self._draining < math.inf:
            self._closing.set()
        self._draining = time.monotonic() + DRAIN  # of the machine: a simulated clock may stand
        return self.command.matched > 0

    def _drained(self) -> bool:
        return self._draining < math.inf and (not self.command.matched or time.monotonic() > self._draining)

    def summary(self) -> str:
        """Return a summary of the run in one line: faults, ticks, lateness, stalls; in lockstep ticks and speed."""
        return (f"with the faults {self.faults}: " if self.faults else "") + self._summary()

    def _summary(self) -> str:
        if "speed" in self.timing:
            return f"{self.timing['ticks']} ticks in lockstep, {self.timing['speed']:.1f} times real time"
        late = self.timing["lateness_us"]
        times = f"lateness p50 {late['p50']:.0f} us, p99 {late['p99']:.0f} us"
        return f"{self.timing['ticks']} ticks, {times}, stood still {self.stalls} times for over {1000 * STALL:.0f} ms"

    def _on_reset(self, sample: Stamped) -> None:
        if sample.msg.data < 0:
            logger.warning("ignored a negative seed on %s: %d", RESET_TOPIC, sample.msg.data)
            return
        self._requests.append(int(sample.msg.data))

    def _faulty(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return hidden values with those that faults change."""
        keys = {f"robot.{name}_scale": self.faults.scale(name) for name in SCALES}
        return {**values} | {key: values.get(key, 1.0) * k for key, k in keys.items() if key in values or k != 1}

    def _value(self, name: str) -> float:
        """Return the hidden value of a parameter; without one, the nominal value."""
        return self.values.get(name, nominal(name))

    def _draw(self, seed: int) -> EpisodeSample:
        """Draw episode `seed`: set the parameters of the physics, effective from the engine's next reset, and return
        the initial poses."""
        self._sampler.seed, self._sampler.next_episode[:] = seed, 0
        sample = self._sampler.sample(np.array([0]))
        for name, value in sample.values.items():
            if name in self.engine.parameters:
                self.engine.parameters[name](np.array([0]), value)
        return sample

    def _header(self, frame: str) -> dict[str, Any]:
        return {"stamp": stamp(), "frame_id": frame}

    def _publish_images(self) -> None:
        """Render and publish the subscribed cameras in other threads; slow rendering skips frames, not ticks."""
        for name, publisher in self.images.items():
            rendering = self._rendering.get(name)
            if rendering is not None and rendering.done():
                rendering.result()  # raises the thread's exception
            if publisher.matched and (rendering is None or rendering.done()):
                publish = partial(self._publish_image, publisher, self._header(f"{name}_optical_frame"))
                self._rendering[name] = self.engine.render_later(0, name, self.image_size, self.image_size)
                self._rendering[name].add_done_callback(publish)

    def _publish_images_now(self) -> None:
        """Render and publish the subscribed cameras, and wait for that."""
        for name, publisher in self.images.items():
            if publisher.matched:
                rendered = self.engine.render_later(0, name, self.image_size, self.image_size)
                wait([rendered])
                self._publish_image(publisher, self._header(f"{name}_optical_frame"), rendered)

    def _publish_image(self, publisher: Publisher, header: dict[str, Any], rendered: Future[np.ndarray]) -> None:
        if rendered.cancelled() or rendered.exception() or self._closing.is_set():
            return
        size, picture = self.image_size, np.ascontiguousarray(rendered.result())
        message = dict(height=size, width=size, encoding="rgb8", is_bigendian=0, step=3 * size)
        publisher.publish(make("sensor_msgs/msg/Image", header=header, data=picture.reshape(-1), **message))


def pose(path: str, position: Sequence[float], quat: Sequence[float]) -> dict[str, float]:
    """Return the numbers of a geometry_msgs/Pose in the field `path`, for `Layout.write`.

    Args: `position`: (3,) m. `quat`: (4,) w x y z.
    """
    places = zip(("position.x", "position.y", "position.z"), position, strict=True)
    turns = zip(("orientation.w", "orientation.x", "orientation.y", "orientation.z"), quat, strict=True)
    return {f"{path}.{name}": number for name, number in (*places, *turns)}
