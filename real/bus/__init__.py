"""One interface to ROS 2's topics with two backends: rclpy when ROS 2 is sourced, CycloneDDS from PyPI otherwise.

::

    with open_node("policy", "/arm") as node:
        state = node.subscribe("sensor_msgs/msg/JointState", "joint_states", qos.SENSOR)
        command = node.publisher("std_msgs/msg/Float64MultiArray", "commands", qos.COMMAND)
        if state.wait(timeout=1.0):
            command.publish(make("std_msgs/msg/Float64MultiArray", data=state.latest.msg.position))
"""

from __future__ import annotations

from collections.abc import Sequence

from real.bus import qos
from real.bus.errors import BusError
from real.bus.messages import decode, encode, make, message, register, type_hash
from real.bus.node import Node, Publisher, Stamped, Subscription
from real.bus.qos import QoS

__all__ = [
    "BusError", "Node", "Publisher", "QoS", "Stamped", "Subscription",
    "decode", "encode", "make", "message", "open_node", "qos", "register", "type_hash",
]  # fmt: skip


def open_node(
    name: str,
    namespace: str = "/",
    domain: int | None = None,
    backend: str = "auto",
    ros_args: Sequence[str] | None = None,
) -> Node:
    """Join the ROS graph.

    ``domain`` None is ROS_DOMAIN_ID, or 0. ``backend`` is "rclpy", "dds", or "auto": rclpy if it
    can be imported. ``ros_args`` are arguments as a launch file passes them, such as
    ``["--ros-args", "-r", "__ns:=/arm"]``; None is none.
    """
    from real.bus.rosargs import parse

    if backend not in ("auto", "rclpy", "dds"):
        raise BusError(f"backend {backend!r} is none of auto, rclpy, dds")
    args = parse(name, namespace, ros_args)
    if backend != "dds":
        try:
            from real.bus.ros import RosNode
        except ImportError as error:
            if backend == "rclpy":
                raise BusError(f"no rclpy ({error}): source ROS 2, or use backend='dds'") from error
        else:
            return RosNode(args, domain)
    try:
        from real.bus.dds import DdsNode
    except ImportError as error:
        raise BusError(f"no rclpy, and no cyclonedds ({error}): pip install 'robot-rl[real]'") from error
    return DdsNode(args, domain)
