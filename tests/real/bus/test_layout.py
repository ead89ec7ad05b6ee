"""Numbers of messages at their places: the same as `decode` and `encode` give."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.bus import BusError, decode, encode, make
from real.bus.layout import Layout, template
from real.bus.messages import store

JOINTS, ODOMETRY = "sensor_msgs/msg/JointState", "nav_msgs/msg/Odometry"
finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=9)


def joints(name: list[str], frame: str, position: list[float], velocity: list[float]) -> bytes:
    header = {"stamp": {"sec": 3, "nanosec": 4}, "frame_id": frame}
    return bytes(encode(make(JOINTS, header=header, name=name, position=position, velocity=velocity), JOINTS))


def value(message: Any, path: str) -> Any:
    for part in path.split("."):
        message = message[int(part)] if part.isdigit() else getattr(message, part)
    return message


@given(st.lists(names, max_size=5), names, st.lists(finite, max_size=5), st.lists(finite, max_size=3))
def test_numbers_are_those_of_the_decoded_message(
    name: list[str], frame: str, position: list[float], velocity: list[float]
) -> None:
    raw = joints(name, frame, position, velocity)
    layout, message = Layout(raw, JOINTS), decode(raw, JOINTS)
    numbers = layout.read(raw)
    assert numbers is not None and layout.write() == raw
    for path in layout.dtype.names or ():
        np.testing.assert_array_equal(numbers[path], value(message, path))
    later = joints(name, frame, position[::-1], velocity)
    read = layout.read(later)
    assert read is not None and read["position"].tolist() == position[::-1]
    assert layout.write(position=position[::-1]) == later


@given(st.sampled_from(sorted(store().types)))
def test_every_type_has_a_layout(type_name: str) -> None:
    layout = template(type_name)
    raw = layout.write()
    assert raw == bytes(encode(make(type_name), type_name))
    for path in layout.dtype.names or ():
        np.testing.assert_array_equal(layout.read(raw)[path], value(decode(raw, type_name), path))


def test_messages_of_another_shape_are_not_read() -> None:
    layout = Layout(joints(["a", "b"], "base", [1.0, 2.0], []), JOINTS)
    assert layout.read(joints(["a", "b"], "base", [3.0, 4.0], [])) is not None
    for other in (
        joints(["b", "a"], "base", [1.0, 2.0], []),
        joints(["a", "b"], "bass", [1.0, 2.0], []),
        joints(["a", "b"], "base", [1.0], [2.0]),
        joints(["a", "b"], "base", [1.0, 2.0], []) + bytes(4),
        b"",
    ):
        assert layout.read(other) is None


def test_big_endian_messages_are_read() -> None:
    message = make(JOINTS, name=["a"], position=[1.5], header={"stamp": {"sec": 7}})
    raw = bytes(store().serialize_cdr(message, JOINTS, little_endian=False))
    numbers = Layout(raw, JOINTS).read(raw)
    assert numbers is not None and numbers["position"] == [1.5] and numbers["header.stamp.sec"] == 7


def test_padding_is_ignored_and_other_encodings_are_refused() -> None:
    raw = bytearray(joints(["a"], "abc", [1.0], []))
    layout, end = Layout(bytes(raw), JOINTS), raw.index(b"a\0", 24) + 2
    assert raw[end : end + 2] == b"\0\0"
    raw[end : end + 2] = b"\7\7"
    assert decode(bytes(raw), JOINTS).name == ["a"] and layout.read(raw) is not None
    raw[1] = 7  # XCDR2
    with pytest.raises(BusError, match="another encoding"):
        Layout(bytes(raw), JOINTS)


def test_numbers_of_another_shape_are_refused() -> None:
    layout = template(JOINTS, name=["a", "b"], position=[0.0, 0.0])
    for wrong in (1.0, [1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(BusError, match="position has shape"):
            layout.write(position=wrong)


def test_nested_numbers_are_written_by_their_path() -> None:
    layout = template(ODOMETRY, child_frame_id="base")
    message = decode(layout.write(**{"pose.pose.position.z": 0.3, "twist.twist.linear.x": -1.0}), ODOMETRY)
    assert (message.pose.pose.position.z, message.twist.twist.linear.x) == (0.3, -1.0)
    assert message.child_frame_id == "base" and message.pose.pose.orientation.w == 1.0
