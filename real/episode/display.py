"""A robot for RViz and Foxglove: its URDF on `robot_description`, its links on `/tf` and `/tf_static`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

from real import clock
from real.bus import BusError, make, qos
from real.description import Link, description, links, tool_link
from real.drivers.names import frames, prefix
from real.episode.rig import Rig

logger = logging.getLogger(__name__)
TEXT, TRANSFORMS = "std_msgs/msg/String", "tf2_msgs/msg/TFMessage"
DESCRIPTION_TOPIC, TF_TOPIC, STATIC_TOPIC = "robot_description", "/tf", "/tf_static"


class Display:
    """Publisher of a robot's looks from its measured joints, called by the thread that steps the environment. Without
    a subscriber of `/tf` it computes nothing.

    Where another node describes the robot, such as a robot_state_publisher, it leaves that to it.
    """

    def __init__(self, rig: Rig):
        node, robot = rig.node, rig.pipeline.robot
        self._rig, self._published, self.urdf = rig, -1.0, ""
        try:
            self.urdf = description(robot, frames(node, robot)[0], prefix(node))
            chain = links(self.urdf) if self.urdf else []
        except (ET.ParseError, KeyError, ValueError, AttributeError) as error:  # no reason not to control the robot
            logger.warning("no robot_description: %s is no valid URDF: %r", robot.model, error)
            return
        if not self.urdf:
            logger.info("no robot_description: the model file of %s is not here, and its spec has no chain", robot.name)
            return
        self._description = node.publisher(TEXT, DESCRIPTION_TOPIC, qos.LATCHED)
        if others := self._description.other_writers():
            logger.info("%s publishes %s already", " and ".join(others), self._description.topic)
            self._description.close()
            return
        self._description.publish(make(TEXT, data=self.urdf))
        try:
            self._tf = node.publisher(TRANSFORMS, TF_TOPIC, qos.VIEWER)
            self._static = node.publisher(TRANSFORMS, STATIC_TOPIC, qos.LATCHED)
        except BusError as error:
            logger.warning("no %s: %s", TF_TOPIC, error)
            return
        named = {name: k for k, name in enumerate((*robot.joint_names, *robot.fingers))}
        named |= {joint.model_name: k for k, joint in enumerate(robot.joints) if joint.model_name}
        named |= {name: k for k, name in enumerate(robot.driver_names(prefix(node)))}
        self._moving = [(link, named.get(link.joint)) for link in chain if not link.fixed]
        """Links, and the index of their joint among joints and fingers; None for joints that nobody measures."""
        tool = tool_link(robot, chain)
        fixed = [link for link in chain if link.fixed] + ([tool] if tool else [])
        self._message = _message([link for link, _ in self._moving])
        static = _message(fixed)
        _set(static, fixed, [0.0] * len(fixed), clock.ros_time())
        self._static.publish(static)
        rig.each_period.append(self.update)

    def update(self) -> None:
        """Publish the links' transforms, once per control period."""
        now, reading = clock.now(), self._rig.driver.reading()
        if reading is None or now - self._published < 0.9 * self._rig.period or not self._tf.matched:
            return
        self._published = now
        fingers = len(self._rig.pipeline.robot.fingers)
        positions = [*reading.position.tolist(), *([reading.gripper / max(1, fingers)] * fingers)]
        values = [0.0 if k is None else positions[k] for _, k in self._moving]
        stamp = clock.ros_time() - round(1e9 * (now - reading.received))
        _set(self._message, [link for link, _ in self._moving], values, stamp)
        self._tf.publish(self._message)


def _message(chain: Sequence[Link]) -> Any:
    """Return the transforms of links, to be filled by `_set`: building a message takes longer than changing it."""
    kind = "geometry_msgs/msg/TransformStamped"
    parts = [make(kind, header={"frame_id": link.parent}, child_frame_id=link.child) for link in chain]
    return make(TRANSFORMS, transforms=parts)


def _set(message: Any, chain: Sequence[Link], values: Sequence[float], stamp: int) -> None:
    """Set the transforms at positions of the links' joints, rad or m, and their time, ns."""
    sec, nanosec = divmod(stamp, 1_000_000_000)
    for part, link, value in zip(message.transforms, chain, values, strict=True):
        (x, y, z), quat = link.at(value)
        part.header.stamp.sec, part.header.stamp.nanosec = sec, nanosec
        to, turn = part.transform.translation, part.transform.rotation
        to.x, to.y, to.z = float(x), float(y), float(z)
        turn.w, turn.x, turn.y, turn.z = quat
