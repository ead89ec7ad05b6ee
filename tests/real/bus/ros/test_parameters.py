"""Parameters of our node with rclpy, read and set by a plain node."""

from collections.abc import Iterator
from typing import Any

import pytest

from real.bus import Node, open_node

pytest.importorskip("rclpy")


@pytest.fixture
def ours(user: Any) -> Iterator[Node]:
    args = ["--ros-args", "-p", "gain:=2", "-p", "extra:=7"]
    with open_node("here", "/arm", backend="rclpy", ros_args=args) as node:
        yield node


def even(value: int) -> None:
    if value % 2:
        raise ValueError("must be even")


def test_plain_node_reads_and_sets_our_parameters(ours: Node, user: Any) -> None:
    assert ours.declare_parameter("gain", 1.0, "gain of the loop", low=0.0, high=5.0) == 2.0
    ours.declare_parameter("steps", 4, on_set=even)
    ours.serve_parameters()
    ours.serve_parameters()
    ours.declare_parameter("robot", "panda", read_only=True)  # after the start
    ours.declare_parameter("joints", ["a", "b"])
    ours.declare_parameter("raw", b"ab")
    user.do("tuner = start(Tuner('/arm/here'))")
    assert user.do("tuner.get('gain', 'robot', 'joints', 'extra')") == [2.0, "panda", ["a", "b"], 7]
    assert user.do("tuner.describe('gain')") == ("gain of the loop", [(0.0, 5.0)], False)
    assert user.do("tuner.set(gain=3.5, steps=6, joints=['c'], raw=[b'x', b'y'])") == ["", "", "", ""]
    wanted = {"gain": 3.5, "steps": 6, "joints": ["c"], "raw": b"xy", "robot": "panda", "extra": 7}
    assert ours.parameters == wanted
    reasons = user.do("tuner.set(gain=5.5, gain_=1, steps=3, robot='ur5e', extra=8, unknown=1)")
    assert all(reasons) and "must be even" in reasons[2] and "declares" in reasons[4]
    assert user.do("tuner.set(gain=1)") != [""]
    assert ours.parameters == wanted
    user.do("stop(tuner)")
