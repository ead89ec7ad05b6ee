"""Topics between our nodes, with both backends, and nodes as ROS users write them (Fast DDS)."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from real.bus import Node, encode, make, open_node, qos

WAIT = 20.0  # longest wait for discovery between two DDS vendors, s, which takes about a second
STATE, FLOATS, JOY = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/Joy"
STRING = "std_msgs/msg/String"
HEADER = {"stamp": {"sec": 12, "nanosec": 999_999_999}, "frame_id": "panda_link0"}
POSE = {"position": {"x": 0.5, "y": -0.1, "z": 0.022}, "orientation": {"x": 0.1, "y": 0.2, "z": 0.3, "w": 0.9}}
TWIST = {"linear": {"x": 0.5, "y": -0.25}, "angular": {"z": 1.5}}
MESSAGES = {
    STATE: {"header": HEADER, "name": ["a", "länger"], "position": [1.0, -2.0], "velocity": [0.5], "effort": []},
    FLOATS: {"layout": {"dim": [{"label": "x", "size": 3, "stride": 3}], "data_offset": 1}, "data": [0.1, -0.0, 1e300]},
    STRING: {"data": '{"seed": 7}'},
    JOY: {"header": HEADER, "axes": [0.25, -1.0], "buttons": [0, 1, -1]},
    "sensor_msgs/msg/Image": {
        "header": HEADER, "height": 48, "width": 64, "encoding": "rgb8", "step": 192,
        "data": np.arange(48 * 64 * 3, dtype=np.uint8),
    },
    "geometry_msgs/msg/PoseStamped": {"header": HEADER, "pose": POSE},
    "geometry_msgs/msg/Twist": TWIST,
    "geometry_msgs/msg/TwistStamped": {"header": HEADER, "twist": TWIST},
    "nav_msgs/msg/Odometry": {
        "header": HEADER, "child_frame_id": "trunk", "pose": {"pose": POSE, "covariance": np.arange(36.0)},
        "twist": {"twist": TWIST, "covariance": -np.arange(36.0)},
    },
    "rcl_interfaces/msg/Log": {"stamp": HEADER["stamp"], "level": 30, "name": "arm.x", "msg": "hot", "line": 4_000_000},
}  # fmt: skip
"""One message of each type that this package puts on topics, but for Unitree's."""


def test_every_type_goes_to_ros_and_back(node: Node, user: Any) -> None:
    """A user's node decodes each message, encodes it and sends it back."""
    subscriptions = [node.subscribe(kind, f"out{k}") for k, kind in enumerate(MESSAGES)]
    publishers = [node.publisher(kind, f"in{k}") for k, kind in enumerate(MESSAGES)]
    user.do(f"echo = start(Echo({list(MESSAGES)!r}))")
    assert node.wait_for(lambda: all(end.matched == 1 for end in (*subscriptions, *publishers)), WAIT)
    assert user.do("until(echo.connected)")
    for (kind, fields), publisher, back in zip(MESSAGES.items(), publishers, subscriptions, strict=True):
        before, sent = time.time_ns(), make(kind, **fields)
        assert publisher.publish(sent)
        assert back.wait(WAIT, after=0), kind
        assert bytes(encode(back.latest.msg, kind)) == bytes(encode(sent, kind)), kind
        assert before <= back.latest.source_ns <= time.time_ns()
    assert not node.incompatible()
    user.do("stop(echo)")
    assert node.wait_for(lambda: not any(end.matched for end in (*subscriptions, *publishers)), WAIT)


def test_plain_subscriber_loses_no_joint_state(node: Node, user: Any) -> None:
    states = node.publisher(STATE, "joint_states", qos.QoS(depth=100))
    user.do("listener = start(StateListener(qos=100))")
    assert node.wait_for(lambda: states.readers() == ["/arm/state_listener"] and states.matched == 1, WAIT)
    assert user.do("until(lambda: listener.count_publishers('/arm/joint_states') == 1)")
    for k in range(100):
        assert states.publish(make(STATE, name=["joint1"], position=[float(k)]))
    assert user.do("until(lambda: len(listener.states) == 100)")
    assert user.do("[list(s.position) for s in listener.states]") == [[float(k)] for k in range(100)]
    user.do("stop(listener)")


def test_commander_and_joystick_are_heard(node: Node, user: Any) -> None:
    command = node.subscribe(FLOATS, "commands", qos.COMMAND)
    stick = node.subscribe(JOY, "joy", qos.SENSOR)
    deaf = node.subscribe(JOY, "joy", qos.DEFAULT)  # asks for more than the driver offers
    user.do("commander, stick = start(Commander()), start(Joystick())")
    assert node.wait_for(lambda: command.writers() == ["/arm/commander"] and stick.writers() == ["/arm/joy_node"], WAIT)
    assert user.do("until(lambda: commander.publisher.get_subscription_count() == 1)")
    assert node.wait_for(lambda: command.matched == 1, WAIT)
    for k in range(10):
        user.do(f"commander.send([{k}.5, -1.0])")
        assert command.wait(WAIT, after=k)
        assert command.latest.msg.data.tolist() == [k + 0.5, -1.0]
    assert stick.wait(WAIT, after=9) and stick.latest.msg.buttons.tolist() == [0, 1]
    axes = stick.latest.msg.axes.tolist()
    assert axes[:2] == [0.25, -1.0] and axes[2] >= 10 and deaf.latest is None
    user.do("stop(commander, stick)")


def test_recorder_finds_and_counts_every_topic(node: Node, user: Any) -> None:
    publishers = {name: node.publisher(kind, f"rec/{name}") for name, kind in (("a", STATE), ("b", FLOATS), ("c", JOY))}
    user.do("recorder = start(Recorder())")
    assert node.wait_for(lambda: all(p.readers() == ["/recorder"] for p in publishers.values()), WAIT)
    assert node.wait_for(lambda: all(p.matched == 1 for p in publishers.values()), WAIT)
    topics = [f"/arm/rec/{name}" for name in publishers]
    assert user.do(f"until(lambda: all(recorder.count_publishers(t) == 1 for t in {topics}))")
    for count, publisher in enumerate(publishers.values(), 1):
        for _ in range(count):
            publisher.publish(make(publisher.type_name))
    assert user.do(f"until(lambda: [recorder.counts.get(t) for t in {topics}] == [1, 2, 3])")
    node.log("warn", "joint 3 is hot")
    assert user.do("until(lambda: recorder.counts['/rosout'] >= 1)")
    user.do("stop(recorder)")


def test_log_of_a_plain_node_is_heard(node: Node, user: Any, eventually: Callable[..., Any]) -> None:
    user.do("talker = start(Node('talker', namespace='/arm')); talker.get_logger().warn('driver is slow')")
    heard: set[tuple[str, str]] = set()
    node.subscribe("rcl_interfaces/msg/Log", "/rosout", qos.ROSOUT, lambda s: heard.add((s.msg.name, s.msg.msg)))
    eventually(lambda: ("arm.talker", "driver is slow") in heard)  # a late joiner gets it too
    user.do("stop(talker)")


def test_late_joiners_get_the_description(node: Node, user: Any) -> None:
    latched = node.publisher(STRING, "robot_description", qos.LATCHED)
    for text in ("old", "<robot/>"):
        latched.publish(make(STRING, data=text))
    late = "profile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)"
    user.do(f"from rclpy.qos import DurabilityPolicy\nlate = start(Describer(qos={late}))")
    assert user.do("until(lambda: late.texts)") == ["<robot/>"]
    latched.close()
    user.do("stop(late)")
    user.do(f"describer = start(Describer('<theirs/>', {late}))")
    theirs = node.subscribe(STRING, "robot_description", qos.LATCHED)
    assert theirs.wait(WAIT, after=0) and (theirs.latest.msg.data, theirs.latest.count) == ("<theirs/>", 1)
    user.do("stop(describer)")


def test_two_namespaces_stay_apart(node: Node, user: Any) -> None:
    backend = "dds" if type(node).__name__ == "DdsNode" else "rclpy"
    user.do("left, right = start(StateListener('/left')), start(StateListener('/right'))")
    with open_node("twin", "/left", backend=backend) as left, open_node("twin", "/right", backend=backend) as right:
        publishers = [opened.publisher(STATE, "joint_states") for opened in (left, right)]
        assert left.wait_for(lambda: publishers[0].readers() == ["/left/state_listener"], WAIT)
        assert right.wait_for(lambda: publishers[1].readers() == ["/right/state_listener"], WAIT)
        assert left.wait_for(lambda: all(p.matched == 1 for p in publishers), WAIT)
        counts = "[n.count_publishers('joint_states') for n in (left, right)]"
        assert user.do(f"until(lambda: {counts} == [1, 1])")
        for publisher, count in zip(publishers, (1, 2), strict=True):
            for _ in range(count):
                publisher.publish(make(STATE, name=[publisher.topic]))
        assert user.do("until(lambda: [len(n.states) for n in (left, right)] == [1, 2])")
        assert user.do("{s.name[0] for s in left.states}, {s.name[0] for s in right.states}") == (
            {"/left/joint_states"}, {"/right/joint_states"},
        )  # fmt: skip
    user.do("stop(left, right)")
