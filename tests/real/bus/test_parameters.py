"""Parameters: declarations and checks, and the six services over DDS."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.bus import BusError, Node, decode, encode, make, open_node, qos
from real.bus.parameters import Declaration, Parameters, from_value, to_value, type_of

WAIT = 10.0  # longest wait for discovery and responses, s
VALUE = "rcl_interfaces/msg/ParameterValue"
ARGS = ["--ros-args", "-p", "gain:=2", "-p", "extra:=[1, 2]", "-p", "limits.speed:=0.5"]


class Tool:
    """Client of another node's parameters, as `ros2 param` is."""

    def __init__(self, node: Node, of: str) -> None:
        self.node, self.of = node, of

    def call(self, short: str, name: str, **fields: Any) -> Any:
        kind = f"rcl_interfaces/srv/{short}"
        return self.node.client(kind, f"{self.of}/{name}", qos.PARAMETERS).call(make(f"{kind}_Request", **fields), WAIT)

    def get(self, *names: str) -> list[Any]:
        return [from_value(v) for v in self.call("GetParameters", "get_parameters", names=names).values]

    def set(self, **values: Any) -> list[str]:
        results = self.call("SetParameters", "set_parameters", parameters=_messages(values)).results
        return ["" if result.successful else result.reason for result in results]

    def set_all(self, **values: Any) -> Any:
        return self.call("SetParametersAtomically", "set_parameters_atomically", parameters=_messages(values)).result


def _messages(values: dict[str, Any]) -> list[dict[str, Any]]:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return [{"name": name, "value": to_value(value, type_of(value))} for name, value in named.items()]


@pytest.fixture
def node(loopback: int) -> Iterator[Node]:
    with open_node("here", "/arm", ros_args=ARGS) as opened:
        yield opened


@pytest.fixture
def tool(node: Node) -> Iterator[Tool]:
    with open_node("tool") as opened:
        yield Tool(opened, "/arm/here")


def refuse_odd(value: int) -> None:
    if value % 2:
        raise ValueError("must be even")


def test_services_read_and_set_parameters(node: Node, tool: Tool) -> None:
    events = tool.node.subscribe("rcl_interfaces/msg/ParameterEvent", "/parameter_events", qos.PARAMETERS)
    assert node.declare_parameter("gain", 1.0, "gain of the loop", low=0.0, high=5.0) == 2.0
    assert node.declare_parameter("steps", 4, low=1, on_set=refuse_odd) == 4
    assert node.declare_parameter("robot", "panda", read_only=True) == "panda"
    node.serve_parameters()
    node.serve_parameters()
    assert node.declare_parameter("joints", ["a", "b"]) == ["a", "b"]  # after the start
    assert tool.get("gain", "joints", "extra") == [2.0, ["a", "b"], [1, 2]]
    assert tool.get("gain", "unknown") == []
    assert tool.call("GetParameterTypes", "get_parameter_types", names=["gain", "joints"]).types.tolist() == [3, 9]

    assert tool.set(gain=3.5, steps=6, joints=["c"]) == ["", "", ""]
    assert (node.parameters["gain"], node.parameters["steps"], node.parameters["joints"]) == (3.5, 6, ["c"])
    assert tool.node.wait_for(lambda: events.matched == 1, WAIT)
    seen = events.latest.count if events.latest else 0
    assert tool.set(steps=8) == [""] and events.wait(WAIT, after=seen)
    (changed,) = events.latest.msg.changed_parameters
    assert (events.latest.msg.node, changed.name, from_value(changed.value)) == ("/arm/here", "steps", 8)

    reasons = tool.set(gain=5.5, steps=3, robot="ur5e", joints=[1], extra=[3], unknown=1)
    words = ("in [0, 5]", "even", "read-only", "string array", "declares", "declares")
    assert all(word in reason for word, reason in zip(words, reasons, strict=True)), reasons
    assert tool.set(gain=1) == ["gain is a double, 1 is a integer"]
    assert "in [1, " in tool.set(steps=0)[0] and "nan" in tool.set(gain=math.nan)[0]
    assert node.parameters["gain"] == 3.5 and node.parameters["robot"] == "panda"
    assert not tool.set_all(gain=1.0, steps=5).successful and node.parameters["gain"] == 3.5
    assert tool.set_all(gain=1.0, steps=8).successful and node.parameters["steps"] == 8


def test_descriptions_and_lists(node: Node, tool: Tool) -> None:
    node.declare_parameter("gain", 1.0, "gain of the loop", low=0.0, high=5.0)
    node.declare_parameter("steps", 4, high=9)
    node.declare_parameter("weights", [1.0], low=0.0)
    node.declare_parameter("robot", "panda", read_only=True)
    node.serve_parameters()
    names = ["gain", "steps", "weights", "robot", "extra"]
    gain, steps, weights, robot, extra = tool.call("DescribeParameters", "describe_parameters", names=names).descriptors
    (limits,) = gain.floating_point_range
    assert (gain.description, limits.from_value, limits.to_value) == ("gain of the loop", 0.0, 5.0)
    assert (steps.integer_range[0].from_value, steps.integer_range[0].to_value) == (-(2**63), 9)
    assert weights.additional_constraints == "each number in [0, inf]" and weights.type == 8
    assert robot.read_only and extra.read_only and not gain.read_only

    def listed(**request: Any) -> tuple[list[str], list[str]]:
        result = tool.call("ListParameters", "list_parameters", **request).result
        return sorted(result.names), result.prefixes

    assert listed() == (["extra", "gain", "limits.speed", "robot", "steps", "weights"], ["limits"])
    assert listed(depth=1)[0] == ["extra", "gain", "robot", "steps", "weights"]
    assert listed(prefixes=["limits"]) == (["limits.speed"], ["limits"])


def test_later_refusal_takes_back_earlier_values() -> None:
    heard: list[int] = []
    parameters = Parameters({})
    parameters.declare(Declaration("a", 2, on_set=heard.append), 1)
    parameters.declare(Declaration("b", 2, on_set=refuse_odd), 2)
    assert parameters.set([("a", 5), ("b", 7)]) == "b: must be even"
    assert heard == [5, 1] and parameters.values == {"a": 1, "b": 2}


def test_faulty_declarations_are_refused(node: Node) -> None:
    with pytest.raises(BusError, match="gain must be in"):
        node.declare_parameter("gain", 0.5, high=1.0)  # the launch argument is 2
    with pytest.raises(BusError, match="gain is a string, 2 is a integer"):
        node.declare_parameter("gain", "high")
    with pytest.raises(BusError, match="ROS has no type"):
        node.declare_parameter("other", {"a": 1})
    node.declare_parameter("limits.speed", 1.0)
    with pytest.raises(BusError, match="declared already"):
        node.declare_parameter("limits.speed", 1.0)


SCALARS = (st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text("abcü"))


@given(st.one_of(*SCALARS, st.binary(max_size=9), *(st.lists(one, min_size=1, max_size=4) for one in SCALARS)))
def test_values_survive_their_message(value: Any) -> None:
    raw = bytes(encode(to_value(value, type_of(value)), VALUE))
    back = from_value(decode(raw, VALUE))
    assert back == value and type_of(back) == type_of(value) > 0
