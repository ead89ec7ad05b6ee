"""ROS 2's topics, services, actions and parameters behind one interface with two backends: rclpy, or CycloneDDS from
PyPI without ROS 2.

::

    with open_node("policy", "/arm") as node:
        state = node.subscribe("sensor_msgs/msg/JointState", "joint_states", qos.SENSOR)
        command = node.publisher("std_msgs/msg/Float64MultiArray", "commands", qos.COMMAND)
        if state.wait(timeout=1.0):
            command.publish(make("std_msgs/msg/Float64MultiArray", data=state.latest.msg.position))
"""

import logging
from collections.abc import Sequence

from real import clock
from real.backends import BACKEND, choose
from real.bus import qos
from real.bus.action import ActionClient
from real.bus.action_server import ActionServer
from real.bus.messages import decode, encode, make, message, register, type_hash
from real.bus.names import BusError
from real.bus.node import Node, Publisher, Stamped, Subscription
from real.bus.qos import QoS
from real.bus.service import Client, Service

__all__ = [
    "ActionClient", "ActionServer", "BusError", "Client", "Node", "Publisher", "QoS", "Service", "Stamped",
    "Subscription", "decode", "encode", "make", "message", "open_node", "qos", "register", "type_hash",
]  # fmt: skip


logger = logging.getLogger(__name__)


def open_node(
    name: str, namespace: str = "/", domain: int | None = None, backend: str = "",
    ros_args: Sequence[str] | None = None, rate: float = 0.0,
) -> Node:  # fmt: skip
    """Join the ROS graph as a node.

    ``domain``: DDS domain id; default ROS_DOMAIN_ID, else 0. ``backend``: "rclpy", "dds" or "auto" (see `choose`);
    default ROBOT_RL_BUS, else auto. ``ros_args``: ROS arguments as a launch file passes them, such as
    ``["--ros-args", "-r", "__ns:=/arm"]``. ``rate``: rate of the process's control loop, Hz.
    """
    from real.bus.rosargs import parse

    args = parse(name, namespace, ros_args)
    chosen, warning = choose(backend, rate)
    level = logging.WARNING if warning else logging.INFO
    logger.log(level, "bus of %s: %s%s", name, chosen, warning and f": {warning}")
    if chosen == "rclpy":
        try:
            from real.bus.ros import RosNode
        except ImportError as error:
            reason = str(error).partition("\n")[0]  # the rest is links to ROS's documentation
            raise BusError(
                f"rclpy cannot be imported ({reason}): source ROS 2 in a new shell, or use bus:=dds ({BACKEND}=dds)"
            ) from error
        return _in_time(RosNode(args, domain))
    try:
        from real.bus.dds import DdsNode
    except ImportError as error:
        raise BusError(f"no rclpy, and no cyclonedds ({error}): pip install 'robot-rl[real]'") from error
    return _in_time(DdsNode(args, domain))


def _in_time(node: Node) -> Node:
    """Make the process follow `/clock` if the first node's parameter use_sim_time is true."""
    if node.parameters.get("use_sim_time") and not clock.in_lockstep():
        from real.sim_time import TimeSource

        TimeSource(node)
    clock.add(node.source)
    return node
