"""Watch a robot or its twin through its topics; the view publishes nothing."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from real.bus import Node, Stamped, qos
from real.drivers import open_driver
from real.drivers.state import JointReading
from real.topics import PLAN_TOPIC, TRUTH_TOPIC
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import OF_JOINTS
from robot_rl.util.errors import UserError
from robot_rl.view.page import Page, table
from robot_rl.view.scene import SceneView
from robot_rl.view.session import Session
from sim.engines.model import compile_model
from sim.scenes import SCENE, Scene

RATE = 30.0
"""Maximum frame rate, Hz."""
OLD = 0.5
"""Age above which a state counts as old, s."""
SHAPE = (96, 96)
"""Height and width of the placeholder before a camera's first picture, pixels."""
PLAN, WIDTH = (28, 126, 214), 3.0
"""Colour and line width of the policy's plan."""


class LiveView:
    """View of the newest joint states, object poses and camera pictures of one robot.

    A legged robot's orientation comes from its IMU, its position from the topic `odometry` (nav_msgs/Odometry), which a
    twin publishes. Without odometry, the robot is drawn at the origin with its lowest foot on the ground.
    """

    def __init__(
        self, node: Node, robot: RobotSpec, scene: Scene, port: int | None = 0, cameras: bool = True,
        odometry: str = TRUTH_TOPIC, mjcf: str = "", recorded: bool = False,
    ):  # fmt: skip
        """`port` as of `Page`. `recorded`: the messages are a recording's, so their ages are not shown."""
        self.node, self.robot = node, robot
        self.model = model = compile_model(robot, scene, mjcf)
        names = tuple(c.name for c in scene.cameras) if cameras else ()
        self.driver = open_driver(node, robot, scene.views, names, dry_run=True)
        self._base: tuple[np.ndarray, float] = np.zeros(3), -math.inf
        """Position of the trunk (3,), m, and its arrival time, monotonic s."""
        if robot.base:
            self.odometry = node.subscribe("nav_msgs/msg/Odometry", odometry, qos.SENSOR, self._on_odometry)
        self._qpos = model.qpos0.copy()
        self._joints = [model.joint(name).qposadr[0] for name in robot.joint_names]
        self._qpos[self._joints] = robot.home
        self._fingers = [model.joint(n).qposadr[0] for n in robot.fingers]
        self._objects = {thing.name: model.joint(SCENE + thing.name).qposadr[0] for thing in scene.objects}
        self._objects |= {name + OF_JOINTS: self._objects[name] + 7 for name in scene.joints}
        self._trunk = model.joint(robot.base.body).qposadr[0] if robot.base else -1
        self._plan = node.subscribe("nav_msgs/msg/Path", PLAN_TOPIC, qos.VIEWER)
        self._planned, self._path = 0, None
        self.page = Page("robot-rl", port)
        self.scene = SceneView(self.page.server, model, robot.base.body if robot.base else "")
        self.recorded, self.session = recorded, Session(node)
        if recorded:  # it may go to any time
            self.driver.state.jumps.speed[:] = np.inf
        else:
            self.page.add_text("status")
            self.session.add_to(self.page)
        if names:
            with self.page.folder("Cameras"):
                for name in names:
                    self.page.add_picture(name, *SHAPE)
        with self.page.folder("Joints", open_=False):
            self.page.add_text("joints")
        self._pictures = dict.fromkeys(names, -math.inf)
        """Arrival times of the displayed pictures, monotonic s."""
        self.drawn = 0
        """Number of scenes drawn."""

    def run(self, wait: Callable[[float], Any], seconds: float = 0.0) -> None:
        """Draw until `wait`(time to the next frame) returns true, for at most `seconds`; 0: no limit."""
        ends = time.monotonic() + seconds if seconds else math.inf
        due = time.monotonic()
        while (now := time.monotonic()) < ends:
            self.show()
            due = max(due + 1 / RATE, now)
            if wait(due - time.monotonic()):
                break

    def show(self) -> None:
        """Draw the newest state, if a browser has the page open."""
        reading = self.driver.reading()
        if reading is not None and self.page.watched:
            self._pose(reading)
            self.scene.show(self._qpos)
            self.drawn += 1
            rows = zip(self.robot.joint_names, reading.position, reading.velocity, strict=True)
            self.page.text("joints", table((n, f"{q:+.3f} rad", f"{v:+.2f} rad/s") for n, q, v in rows))
            self._show_plan()
        self._show_pictures()
        if not self.recorded:
            self.session.show(self.page)
            self.page.text("status", self._status(reading))

    def close(self) -> None:
        """Close the page; the caller closes the node."""
        self.page.close()

    # ---- state to model positions ------------------------------------------------------------------------------
    def _pose(self, reading: JointReading) -> None:
        self._qpos[self._joints] = reading.position
        if self._fingers:
            self._qpos[self._fingers] = reading.gripper / len(self._fingers)
        for name, values in self.driver.scene.object_poses()[0].items():
            if (start := self._objects.get(name)) is not None:  # not the poses of parts, which follow from the joints
                self._qpos[start : start + values.shape[1]] = values[0].numpy()
        if self.robot.base:
            start = self._trunk
            self._qpos[start + 3 : start + 7] = getattr(reading, "quat", (1.0, 0.0, 0.0, 0.0))
            self._qpos[start : start + 3] = self._place()

    def _place(self) -> np.ndarray:
        """Return the trunk's position (3,), m: from odometry if recent, else with the lowest foot on the ground."""
        assert self.robot.base is not None
        place, received = self._base
        if time.monotonic() - received < OLD:
            return place
        self._qpos[self._trunk : self._trunk + 3] = 0.0
        feet = self.scene.heights(self._qpos, self.robot.base.feet)
        return np.array([*place[:2], self.robot.base.foot_radius - feet.min()])

    def _on_odometry(self, sample: Stamped) -> None:
        p = sample.msg.pose.pose.position
        place = np.array([p.x, p.y, p.z])
        if np.isfinite(place).all():
            self._base = place, sample.received

    def _show_plan(self) -> None:
        """Draw the policy's newest plan as a path of the tool; remove an old one, or one that a person replaces."""
        sample = self._plan.latest
        current = sample is not None and time.monotonic() - sample.received < 4 * OLD and not self.session.controlled
        if current and sample is not None and sample.count != self._planned:
            self._planned = sample.count
            points = [(p.x, p.y, p.z) for p in (pose.pose.position for pose in sample.msg.poses)]
            if len(points) > 1 and np.isfinite(points).all():
                self._path = self.page.server.scene.add_spline_catmull_rom(
                    "/plan", np.array(points), color=PLAN, line_width=WIDTH
                )
        if self._path is not None and self._path.visible != current:
            self._path.visible = current

    # ---- text and pictures -------------------------------------------------------------------------------------
    def _show_pictures(self) -> None:
        for name, shown in self._pictures.items():
            received = self.driver.scene.image_received(name)
            if received > shown and self.page.due(name):
                self._pictures[name] = received
                try:
                    picture = self.driver.scene.image(name)
                except (UserError, ValueError):  # not decodable
                    continue
                if picture is not None:
                    self.page.picture(name, np.ascontiguousarray(picture))

    def _status(self, reading: JointReading | None) -> str:
        received = -math.inf if reading is None else reading.received
        arrivals = {self.driver.state.joints.topic: received}
        for subscription in self.driver.scene.poses.values():
            arrivals[subscription.topic] = subscription.latest.received if subscription.latest else -math.inf
        if self.robot.base:
            arrivals[self.odometry.topic] = self._base[1]
        scene = self.driver.scene
        arrivals |= {scene.images[name].topic: scene.image_received(name) for name in self._pictures}
        now = time.monotonic()
        asked = self.session.episode.instruction
        rows = [("asked", asked)] if asked else []
        rows += [(topic, _age(now - arrival)) for topic, arrival in arrivals.items()]
        if now - received < OLD:
            note = "<i>live</i>"
        elif reading is None:
            note = f'<b style="color:#c92a2a">nothing heard yet: is the driver of {self.robot.name} running?</b>'
        else:
            note = '<b style="color:#c92a2a">old: the robot may be elsewhere by now</b>'
        return f"<b>{self.robot.name}: age of the newest message</b>{table(rows)}{note}"


def _age(seconds: float) -> str:
    if seconds == math.inf:
        return "none"
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
