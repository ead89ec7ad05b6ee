import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.bus import BusError, decode, encode, make, message, register, type_hash
from real.bus.graph import Entry, Graph, graph_bytes, owner
from real.bus.messages import gid_size, load_store, store

# Hashes of a Jazzy build.
JAZZY = """
std_msgs/msg/Bool feb91e995ff9ebd09c0cb3d2aed18b11077585839fb5db80193b62d74528f6c9
std_msgs/msg/Float64MultiArray 1025ddc6b9552d191f89ef1a8d2f60f3d373e28b283d8891ddcc974e8c55397f
std_msgs/msg/String df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18
sensor_msgs/msg/JointState a13ee3a330e346c9d87b5aa18d24e11690752bd33a0350f11c5882bc9179260e
sensor_msgs/msg/Joy 0d356c79cad3401e35ffeb75a96a96e08be3ef896b8b83841d73e890989372c5
sensor_msgs/msg/Image d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47
sensor_msgs/msg/CameraInfo b3dfd68ff46c9d56c80fd3bd4ed22c7a4ddce8c8348f2f59c299e73118e7e275
sensor_msgs/msg/BatteryState 4bee5dfce981c98faa6828b868307a0a73f992ed0789f374ee96c8f840e69741
geometry_msgs/msg/PoseStamped 10f3786d7d40fd2b54367835614bff85d4ad3b5dab62bf8bca0cc232d73b4cd8
nav_msgs/msg/Odometry 3cc97dc7fb7502f8714462c526d369e35b603cfc34d946e3f2eda2766dfec6e0
rcl_interfaces/msg/Log e28ce254ca8abc06abf92773b74602cdbf116ed34fbaf294fb9f81da9f318eac
lifecycle_msgs/msg/TransitionEvent d5f8873a2f0146498f812d7885c7327ce27e463d36811d8792f35ee38c0d6c38
control_msgs/msg/DynamicJointState 18024c98a62697680f581108eeed40b28fb4542fa0ac5a8e36f56c62b6813d26
rmw_dds_common/msg/ParticipantEntitiesInfo 91a0593bacdcc50ea9bdcf849a938b128412cc1ea821245c663bcd26f83c295e
"""
HASHES = [line.split() for line in JAZZY.split("\n") if line]
TYPES = sorted(store().types)


def test_type_hashes_are_those_of_a_jazzy_build() -> None:
    assert {name: type_hash(name) for name, _ in HASHES} == {name: f"RIHS01_{digest}" for name, digest in HASHES}


def test_golden_bytes() -> None:
    # An empty message is one zero byte, padded to 4 bytes.
    assert bytes(encode(make("std_msgs/msg/Empty"), "std_msgs/msg/Empty")).hex() == "0001000000000000"
    hello = encode(make("std_msgs/msg/String", data="hello"), "std_msgs/msg/String")
    assert bytes(hello) == b"\0\1\0\0" + b"\6\0\0\0hello\0" + b"\0\0"
    joints = make("sensor_msgs/msg/JointState", header={"stamp": {"sec": 1, "nanosec": 2}}, name=["a"], position=[1.5])
    assert bytes(encode(joints, "sensor_msgs/msg/JointState")).hex() == (
        "00010000" "01000000" "02000000"  # stamp
        "01000000" "00" "000000"  # frame_id "", padding
        "01000000" "02000000" "6100" "0000"  # name ["a"], padding
        "01000000" "000000000000f83f"  # position [1.5]: the 8-byte value is aligned already
        "00000000" "00000000"  # velocity, effort
    )  # fmt: skip


def test_default_messages_round_trip() -> None:
    for name in TYPES:
        raw = bytes(encode(make(name), name))
        assert len(raw) % 4 == 0 and bytes(encode(decode(raw, name), name)) == raw, name


finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(names, finite, finite), max_size=4))
def test_joint_state_round_trips(joints: list[tuple[str, float, float]]) -> None:
    kind = "sensor_msgs/msg/JointState"
    sent = make(kind, name=[j[0] for j in joints], position=[j[1] for j in joints], effort=[j[2] for j in joints])
    got = decode(bytes(encode(sent, kind)), kind)
    assert got.name == [j[0] for j in joints]
    assert got.position.tolist() == [j[1] for j in joints] and got.effort.tolist() == [j[2] for j in joints]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(TYPES), st.binary(max_size=64))
def test_malformed_bytes_are_decoded_or_refused(name: str, raw: bytes) -> None:
    try:
        decode(b"\0\1\0\0" + raw, name)
    except BusError as error:
        assert name in str(error)


def test_make_fills_nested_messages_and_converts() -> None:
    pose = make("geometry_msgs/msg/PoseStamped", header={"frame_id": "base"}, pose={"position": {"z": 0.3}})
    assert (pose.header.frame_id, pose.pose.position.z, pose.pose.position.x) == ("base", 0.3, 0.0)
    assert pose.pose.orientation.w == 1.0  # as in ROS: zeros are not a rotation
    image = make("sensor_msgs/msg/Image", data=b"\1\2\3")
    assert image.data.dtype == np.uint8
    assert make("sensor_msgs/msg/Imu").orientation_covariance.shape == (9,)
    command = make("unitree_go/msg/LowCmd", motor_cmd=[{"kp": 20.0}] + [{}] * 19)
    assert command.motor_cmd[0].kp == 20.0
    assert len(make("unitree_hg/msg/LowCmd").motor_cmd) == 35
    register("test_msgs_of_ours/msg/Two", "std_msgs/Header header\nfloat32[2] pair")
    assert make("test_msgs_of_ours/msg/Two").pair.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        *(
            (name, {}, "sensor_msgs/msg/JointState")
            for name in ("sensor_msgs/msg/JointStat", "sensor_msgs/JointState", "JointState")
        ),
        ("zzz", {}, "std_msgs/msg/Bool"),
        ("sensor_msgs/msg/JointState", {"positions": [0.0]}, "nearest: position "),
        ("sensor_msgs/msg/Imu", {"orientation_covariance": [0.0]}, "exactly 9 values, got 1"),
        ("unitree_go/msg/LowCmd", {"motor_cmd": [{}]}, "exactly 20 values, got 1"),
    ],
)
def test_invalid_names_are_refused_with_the_nearest(name: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(BusError, match=message):
        make(name, **fields)


def test_invalid_values_are_not_encoded() -> None:
    kind = "sensor_msgs/msg/JointState"
    for wrong in (np.array([1, 2]), np.zeros(2, np.float32), [0.0, 1.0], np.zeros((1, 2))):
        msg = make(kind)
        msg.position = wrong
        with pytest.raises(BusError, match=r"position .*float64"):
            encode(msg, kind)
    with pytest.raises(BusError, match="std_msgs/msg/Bool"):
        encode(make("std_msgs/msg/Bool"), kind)
    with pytest.raises(BusError, match="make"):
        encode(message("std_msgs/msg/UInt8")(data=300), "std_msgs/msg/UInt8")


def test_only_the_gid_differs_between_distros() -> None:
    new, old = load_store(16), load_store(24)
    differ = [n for n in new.fielddefs if new.fielddefs[n] != old.fielddefs[n]]
    assert differ == ["rmw_dds_common/msg/Gid"]


# ---- the announcement of nodes -----------------------------------------------------------------------------------
STORES = {16: load_store(16), 24: load_store(24)}
ME, READER, WRITER = bytes(range(16)), b"r" * 16, b"w" * 16


def string(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return struct.pack("<I", len(raw)) + raw + bytes(-len(raw) % 4)


@pytest.mark.parametrize("size", [16, 24])
def test_golden_bytes_of_an_announcement(size: int) -> None:
    def gid(guid: bytes) -> bytes:
        return guid.ljust(size, b"\0")

    one = struct.pack("<I", 1)
    expected = b"\0\1\0\0" + gid(ME) + one + string("/arm") + string("policy")
    expected += one + gid(READER) + one + gid(WRITER)
    assert graph_bytes(ME, [Entry("/arm", "policy", [READER], [WRITER])], STORES[size]) == expected


@pytest.mark.parametrize(("distro", "size"), [("humble", 24), ("iron", 16), ("jazzy", 16), (None, 16)])
def test_the_distro_sets_the_gid_size(monkeypatch: pytest.MonkeyPatch, distro: str | None, size: int) -> None:
    if distro is None:
        monkeypatch.delenv("ROS_DISTRO", raising=False)
    else:
        monkeypatch.setenv("ROS_DISTRO", distro)
    assert gid_size() == size


guid = st.binary(min_size=16, max_size=16)
token = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
entry = st.builds(Entry, token.map("/{}".format), token, st.lists(guid, max_size=3), st.lists(guid, max_size=3))


@settings(max_examples=40, deadline=None)
@given(guid, st.lists(entry, max_size=3), st.sampled_from([16, 24]))
def test_announcements_round_trip(me: bytes, nodes: list[Entry], size: int) -> None:
    seen = Graph(STORES[size])
    seen.update(graph_bytes(me, [Entry("/", "old")], STORES[size]))
    seen.update(graph_bytes(me, nodes, STORES[size]))  # replaces, not adds
    assert seen.entries() == nodes


@given(st.binary(max_size=80))
def test_malformed_announcements_are_ignored(raw: bytes) -> None:
    seen = Graph(STORES[16])
    seen.update(graph_bytes(ME, [Entry("/", "n", [READER])], STORES[16]))
    seen.update(b"\0\1\0\0" + b"\xff" * 16 + raw)
    assert owner(READER, seen.entries()) == "/n"


def test_number_of_participants_is_bounded() -> None:
    seen = Graph(STORES[16])
    for i in range(1100):
        seen.update(graph_bytes(struct.pack("<IIII", i, 0, 0, 0), [Entry("/", f"n{i}")], STORES[16]))
    assert len(seen.entries()) == 1000 and seen.entries()[-1].name == "n1099"


def test_endpoint_without_a_node_is_named_by_its_participant() -> None:
    assert owner(WRITER, []) == f"an unnamed DDS participant ({(b'w' * 12).hex()})"
