"""Our rclpy backend: against our DDS backend, and its arguments, log, callbacks and errors."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from real.bus import BusError, Node, encode, make, open_node, qos

WAIT = 20.0  # longest wait for discovery between two DDS vendors, s, which takes about a second
STATE, FLOATS, STRING = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64MultiArray", "std_msgs/msg/String"


@pytest.fixture(scope="module")
def ours(loopback: int) -> Iterator[Node]:
    """Our node with rclpy."""
    with open_node("ours", "/arm", backend="rclpy", ros_args=["--ros-args", "-r", "a:=b", "-p", "k:=1"]) as node:
        yield node


@pytest.fixture(scope="module")
def other(loopback: int) -> Iterator[Node]:
    """Our node with DDS."""
    with open_node("other", "/arm", backend="dds") as node:
        yield node


@pytest.mark.parametrize("forth", [True, False], ids=["dds to rclpy", "rclpy to dds"])
def test_both_backends_exchange_messages(ours: Node, other: Node, forth: bool) -> None:
    sender, receiver = (other, ours) if forth else (ours, other)
    topic = f"/exchange/{sender.name}"
    sub, pub = receiver.subscribe(STATE, topic, qos.QoS(depth=100)), sender.publisher(STATE, topic, qos.QoS(depth=100))
    assert sender.wait_for(lambda: pub.matched == 1 and pub.readers() == [receiver.full_name], WAIT)
    assert receiver.wait_for(lambda: sub.matched == 1 and sub.writers() == [sender.full_name], WAIT)
    sent = make(STATE, name=["a"], position=[1.0], header={"frame_id": "base"})
    for _ in range(50):
        assert pub.publish(sent)
    assert sub.wait(WAIT, after=49)
    assert bytes(encode(sub.latest.msg, STATE)) == bytes(encode(sent, STATE)) and sub.latest.source_ns > 0
    assert pub.publish(bytes(encode(sent, STATE))) and sub.wait(WAIT, after=50)  # CDR bytes are published unchanged
    pub.close()
    assert receiver.wait_for(lambda: sub.matched == 0, WAIT)
    sub.close()
    sub.close()


def test_remaps_parameters_and_one_participant(ours: Any) -> None:
    assert ours.subscribe(STATE, "a").topic == "/arm/b" and ours.parameters == {"k": 1}
    assert ours.ros.get_parameter("k").value == 1
    with open_node("second", backend="rclpy") as second:
        assert second.ros.context is ours.ros.context, "a process has one DDS participant"
    assert ours.ros.get_name() == "ours" and ours.ros.context.ok()


def test_log_reaches_the_other_backend(ours: Node, other: Node, eventually: Callable[..., Any]) -> None:
    heard: set[tuple[int, str, str]] = set()
    rosout = "rcl_interfaces/msg/Log"
    other.subscribe(rosout, "/rosout", qos.ROSOUT, lambda s: heard.add((s.msg.level, s.msg.name, s.msg.msg)))
    ours.log("warn", "joint 3 is hot")
    eventually(lambda: (30, "arm.ours", "joint 3 is hot") in heard)


def test_failed_callback_does_not_end_the_executor(
    ours: Node, other: Node, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    seen: list[float] = []

    def collect(sample: Any) -> None:
        seen.append(sample.msg.data[0])
        if sample.msg.data[0] == 1.0:
            raise ValueError("bad callback")

    sub, pub = ours.subscribe(FLOATS, "fails", callback=collect), other.publisher(FLOATS, "fails")
    assert other.wait_for(lambda: pub.matched == 1, WAIT) and ours.wait_for(lambda: sub.matched == 1, WAIT)
    for value in (1.0, 2.0):
        pub.publish(make(FLOATS, data=[value]))
    eventually(lambda: seen == [1.0, 2.0])
    assert "bad callback" in caplog.text


def test_closed_node_leaves_the_graph(ours: Node, other: Node) -> None:
    brief = open_node("brief", backend="rclpy")
    pub = brief.publisher(STRING, "/brief", qos.LATCHED)
    sub = other.subscribe(STRING, "/brief", qos.LATCHED)
    pub.publish(make(STRING, data="x"))
    assert sub.wait(WAIT, after=0) and other.wait_for(lambda: sub.writers() == ["/brief"], WAIT)
    brief.close()
    brief.close()
    assert other.wait_for(lambda: sub.matched == 0 and sub.writers() == [], WAIT)


def test_rclpy_alone_sets_the_name_of_its_distribution(ours: Node) -> None:
    assert os.environ["ROS_DISTRO"] == "jazzy"


def test_domain_beyond_the_last_is_refused(loopback: int) -> None:
    """Fast DDS would end the process."""
    with pytest.raises(BusError, match="domain is '300': use 0 to 232"):
        open_node("n", domain=300, backend="rclpy")


def test_missing_log_folder_is_named(loopback: int) -> None:
    command = [sys.executable, "-c", "from real.bus import open_node; open_node('n', backend='rclpy')"]
    env = os.environ | {"ROS_LOG_DIR": "/proc/none"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search("BusError: rclpy failed: .*Failed to create log directory.*ROS_LOG_DIR", done.stderr), done.stderr


def test_missing_libraries_are_named(loopback: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "real.bus.ros", None)
    with pytest.raises(BusError, match="rclpy cannot be imported .*source ROS 2 in a new shell.*bus:=dds"):
        open_node("n", backend="rclpy")
