"""Two processes over DDS."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from real.bus import BusError, Node, encode, make, open_node, qos

WAIT = 10.0  # longest wait for discovery, s, which takes about 0.1 s
STATE, IMAGE, FLOATS = "sensor_msgs/msg/JointState", "sensor_msgs/msg/Image", "std_msgs/msg/Float64MultiArray"
IMPORT = "from real.bus import *\nfrom real.bus import qos"


@pytest.fixture
def node(loopback: int) -> Iterator[Node]:
    with open_node("here", "/arm") as opened:
        yield opened


def test_state_and_image_go_both_ways(node: Node, peer: Any) -> None:
    peer.do(
        f"{IMPORT}\n"
        "node = open_node('echo', '/arm')\n"
        "back = {k: node.publisher(t, k + '_back') for k, t in "
        f"(('state', {STATE!r}), ('image', {IMAGE!r}))}}\n"
        "subs = {k: node.subscribe(p.type_name, k, callback=lambda s, p=p: p.publish(s.msg))"
        " for k, p in back.items()}"
    )
    out = {"state": node.publisher(STATE, "state"), "image": node.publisher(IMAGE, "image", qos.COMMAND)}
    back = {k: node.subscribe(p.type_name, f"{k}_back") for k, p in out.items()}
    assert node.wait_for(lambda: all(p.matched for p in out.values()) and all(s.matched for s in back.values()), WAIT)
    ends = "[*subs.values(), *back.values()]"
    assert peer.do(f"node.wait_for(lambda: all(end.matched for end in {ends}), 10) and len(subs)") == 2

    before = time.monotonic()
    sent = make(STATE, header={"frame_id": "base"}, name=["a", "b"], position=[1.0, -2.0], velocity=[0.5, 0.25])
    assert out["state"].publish(sent)
    assert back["state"].wait(WAIT, after=0)
    got = back["state"].latest
    assert bytes(encode(got.msg, STATE)) == bytes(encode(sent, STATE))
    assert before < got.received < time.monotonic()
    assert abs(time.time_ns() - got.source_ns) < 10e9 and got.count == 1

    pixels = np.random.default_rng(0).integers(0, 256, 480 * 640 * 3, np.uint8)
    out["image"].publish(make(IMAGE, height=480, width=640, encoding="rgb8", step=1920, data=pixels))
    assert back["image"].wait(WAIT, after=0)
    image = back["image"].latest
    assert image._msg is None, "decoded at first use"
    assert np.array_equal(image.msg.data, pixels) and image.msg is image.msg

    for i in range(100):  # without loss, as it is reliable
        assert out["state"].publish(make(STATE, position=[float(i)])) and back["state"].wait(WAIT, after=1 + i)
    assert back["state"].latest.msg.position.tolist() == [99.0]


def test_late_joiner_gets_the_latched_sample(node: Node, peer: Any) -> None:
    latched = node.publisher("std_msgs/msg/String", "robot_description", qos.LATCHED)
    plain = node.publisher("std_msgs/msg/String", "plain")
    for text in ("old", "<robot/>"):
        latched.publish(make("std_msgs/msg/String", data=text))
        plain.publish(make("std_msgs/msg/String", data=text))
    peer.do(f"{IMPORT}\nnode = open_node('late')\na = ('std_msgs/msg/String', '/arm/robot_description', qos.LATCHED)")
    peer.do("first = node.subscribe(*a); missed = node.subscribe('std_msgs/msg/String', '/arm/plain')")
    assert peer.do("first.wait(10, after=0) and (first.latest.msg.data, first.latest.count)") == ("<robot/>", 1)
    assert peer.do("node.wait_for(lambda: missed.matched == 1, 10) and missed.latest is None")


def test_plain_dds_program_sees_a_ros_node(node: Node, peer: Any, loopback: int) -> None:
    node.publisher(STATE, "joint_states", qos.COMMAND)
    node.publisher("std_msgs/msg/String", "robot_description", qos.LATCHED)
    peer.do(
        f"""
from cyclonedds.builtin import *
from cyclonedds.core import *
from cyclonedds.domain import DomainParticipant
from cyclonedds.qos import Policy, Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration
from dataclasses import dataclass
from cyclonedds.idl import IdlStruct, types
@dataclass
class Gid(IdlStruct, typename="rmw_dds_common.msg.dds_.Gid_"):
    data: types.array[types.uint8, 16]
@dataclass
class NodeInfo(IdlStruct, typename="rmw_dds_common.msg.dds_.NodeEntitiesInfo_"):
    node_namespace: types.bounded_str[256]
    node_name: types.bounded_str[256]
    reader_gid_seq: types.sequence[Gid]
    writer_gid_seq: types.sequence[Gid]
@dataclass
class Info(IdlStruct, typename="rmw_dds_common.msg.dds_.ParticipantEntitiesInfo_"):
    gid: Gid
    node_entities_info_seq: types.sequence[NodeInfo]
dp = DomainParticipant({loopback})
def until(reader, good):
    condition = ReadCondition(reader, ViewState.Any | InstanceState.Alive | SampleState.NotRead)
    waitset = WaitSet(dp)
    waitset.attach(condition)
    while True:
        for sample in reader.take(100, condition):
            if good(sample):
                return sample
        if not waitset.wait(duration(seconds=10)):
            raise TimeoutError
def user_data(qos):
    return qos[Policy.Userdata].data
"""
    )
    participant = "until(BuiltinDataReader(dp, BuiltinTopicDcpsParticipant), lambda s: s.key != dp.guid)"
    assert peer.do(f"user_data({participant}.qos)") == b"enclave=/;"
    peer.do("pubs = BuiltinDataReader(dp, BuiltinTopicDcpsPublication)")
    peer.do("e = until(pubs, lambda s: s.topic_name == 'rt/arm/joint_states')")
    assert peer.do("e.type_name, user_data(e.qos)") == (
        "sensor_msgs::msg::dds_::JointState_",
        b"typehash=RIHS01_a13ee3a330e346c9d87b5aa18d24e11690752bd33a0350f11c5882bc9179260e;",
    )
    blocking = peer.do("e.qos[Policy.Reliability].max_blocking_time")
    assert 0 < blocking <= 100_000_000  # ns, so that a dead reader cannot stall a control loop
    assert peer.do("e.qos[Policy.History].depth, e.qos[Policy.Durability] == Policy.Durability.Volatile") == (1, True)
    peer.do(
        "graph = DataReader(dp, Topic(dp, 'ros_discovery_info', Info), Qos(Policy.History.KeepAll,"
        " Policy.Reliability.Reliable(0), Policy.Durability.TransientLocal))\n"
        "whole = until(graph, lambda s: any(len(n.writer_gid_seq) == 3 for n in s.node_entities_info_seq))"
    )
    namespace, name, gids = peer.do(
        "[(n.node_namespace, n.node_name, [bytes(g.data) for g in n.writer_gid_seq])"
        " for n in whole.node_entities_info_seq][0]"
    )
    assert (namespace, name) == ("/arm", "here")
    assert gids == [item.endpoint.guid for item in node._endpoints]  # /rosout and our two
    assert peer.do("bytes(whole.gid.data)") == node.participant.dds.guid.bytes


def test_qos_mismatch_is_reported(node: Node, peer: Any) -> None:
    peer.do(f"{IMPORT}\nnode = open_node('talker', '/arm')\npub = node.publisher({STATE!r}, 'state', qos.SENSOR)")
    sub = node.subscribe(STATE, "state")
    assert node.wait_for(lambda: any("/arm/talker" in s for s in node.incompatible()), WAIT)
    (message,) = node.incompatible()
    assert "/arm/state" in message and "reliability" in message and "reliable=False" in message
    assert peer.do("node.wait_for(lambda: '/arm/here' in ''.join(node.incompatible()), 10)")
    assert sub.matched == 0
    late = node.subscribe(STATE, "state", qos.QoS(reliable=False, transient_local=True))
    assert node.wait_for(lambda: any("durability" in s for s in node.incompatible()), WAIT)
    good = node.subscribe(STATE, "state", qos.SENSOR)
    assert node.wait_for(lambda: good.matched == 1, WAIT) and late.matched == 0


def test_type_mismatch_is_reported(node: Node, peer: Any) -> None:
    peer.do(f"{IMPORT}\nnode = open_node('liar')\npub = node.publisher('std_msgs/msg/Bool', '/arm/state')")
    node.subscribe(STATE, "state")
    assert node.wait_for(lambda: any("/liar" in s for s in node.incompatible()), WAIT)
    assert "std_msgs::msg::dds_::Bool_" in node.incompatible()[0]


def test_other_writers_and_closed_endpoints(node: Node, peer: Any) -> None:
    mine = node.publisher(FLOATS, "commands", qos.COMMAND)
    sub = node.subscribe(FLOATS, "commands")
    peer.do(f"{IMPORT}\nnode = open_node('rival', '/x')\npub = node.publisher({FLOATS!r}, '/arm/commands')")
    assert node.wait_for(lambda: mine.other_writers() == ["/x/rival"], WAIT)
    assert peer.do("node.wait_for(lambda: pub.other_writers() == ['/arm/here'] and pub.matched == 1, 10)")
    assert peer.do("node.wait_for(lambda: pub.readers() == ['/arm/here'], 10)")
    with open_node("second", "/arm") as second:  # in the same process
        second.publisher(FLOATS, "commands")
        assert node.wait_for(lambda: mine.other_writers() == ["/arm/second", "/x/rival"], WAIT)
    assert node.wait_for(lambda: mine.other_writers() == ["/x/rival"], WAIT)
    mine.close()
    sub.close()
    sub.close()
    assert (mine.matched, sub.matched) == (0, 0)
    assert peer.do("node.wait_for(lambda: pub.other_writers() == [] and pub.matched == 0, 10)")
    with pytest.raises(BusError, match="closed"):
        mine.publish(make(FLOATS))


def test_a_closed_publisher_of_this_process_is_no_writer(node: Node) -> None:
    """At once, although DDS tells of it later."""
    sub = node.subscribe(FLOATS, "commands")
    for _ in range(20):
        publisher = node.publisher(FLOATS, "commands", qos.COMMAND)
        assert node.wait_for(lambda: sub.writers() == ["/arm/here"], WAIT)
        publisher.close()
        assert sub.writers() == []


def test_killed_peer_disappears_after_its_lease(node: Node, peer: Any) -> None:
    peer.do(f"{IMPORT}\nnode = open_node('victim')\npub = node.publisher({STATE!r}, '/arm/state')")
    sub = node.subscribe(STATE, "state")
    command = node.publisher(STATE, "state")
    assert node.wait_for(lambda: sub.matched == 2 and command.other_writers() == ["/victim"], WAIT)
    peer.process.kill()
    assert node.wait_for(lambda: sub.matched == 1 and command.other_writers() == [], WAIT)
    assert command.publish(make(STATE)) and sub.wait(WAIT, after=0)  # other peers are not affected


def test_remaps_and_parameters_apply(loopback: int) -> None:
    args = ["--ros-args", "-r", "__ns:=/left", "-r", "__node:=run", "-r", "state:=/robot/joint_states", "-p", "hz:=50"]
    with open_node("policy", ros_args=args) as node:
        assert node.full_name == "/left/run"
        assert node.parameters == {"hz": 50}
        assert node.subscribe(STATE, "state").topic == "/robot/joint_states"
        assert node.publisher(STATE, "~/debug").topic == "/left/run/debug"


def test_failed_callback_does_not_end_the_thread(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[float] = []

    def collect(sample: Any) -> None:
        seen.append(sample.msg.data)
        if sample.msg.data == 1.0:
            raise ValueError("bad callback")

    pub = node.publisher("std_msgs/msg/Float64", "x")
    sub = node.subscribe("std_msgs/msg/Float64", "x", callback=collect)
    assert node.wait_for(lambda: pub.matched == 1, WAIT)
    for i in (1.0, 2.0):
        pub.publish(make("std_msgs/msg/Float64", data=i))
        assert sub.wait(WAIT, after=int(i) - 1)
    pub.publish(b"\0\1\0\0" + bytes(8))  # CDR bytes are published unchanged
    assert sub.wait(WAIT, after=2)
    node.close()  # joins the reader thread after its last callback
    assert seen == [1.0, 2.0, 0.0] and "bad callback" in caplog.text


def test_rosout(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "real.bus"):
        node.log("warn", "joint 3 is hot")
        node.log("debug", "not at this level")
        with pytest.raises(BusError, match="debug, info"):
            node.log("loud", "x")
    rosout = node.subscribe("rcl_interfaces/msg/Log", "/rosout", qos.ROSOUT)  # a late joiner
    assert rosout.wait(WAIT, after=0)
    log = rosout.latest.msg
    assert (log.level, log.name, log.msg, log.function) == (30, "arm.here", "joint 3 is hot", "test_rosout")
    assert [r.getMessage() for r in caplog.records] == ["joint 3 is hot"]


def test_closed_node(loopback: int) -> None:
    node = open_node("brief")
    pub = node.publisher(STATE, "state")
    node.close()
    node.close()
    assert pub.matched == 0
    with pytest.raises(BusError, match="closed"):
        pub.publish(make(STATE))
    with pytest.raises(BusError, match="closed"):
        node.subscribe(STATE, "state")
    with open_node("again") as again:  # with a new participant
        assert again.publisher(STATE, "state").publish(make(STATE))
