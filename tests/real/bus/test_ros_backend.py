"""rclpy backend with a stub of rclpy: calls and published bytes."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from real.bus import BusError, encode, make, open_node, qos

STATE = "sensor_msgs/msg/JointState"


class FakeNode:
    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options
        self.subscriptions: dict[str, Any] = {}
        self.sent: list[tuple[str, bytes]] = []
        self.published = STATE

    def create_publisher(self, cls: Any, topic: str, profile: Any, event_callbacks: Any) -> Any:
        def publish(raw: bytes) -> None:
            self.sent.append((topic, raw))
            if topic in self.subscriptions:
                self.subscriptions[topic](raw, {"source_timestamp": 7})

        return SimpleNamespace(publish=publish, get_subscription_count=lambda: topic in self.subscriptions)

    def create_subscription(self, cls: Any, topic: str, callback: Any, profile: Any, raw: bool, event_callbacks: Any):
        assert raw
        self.subscriptions[topic] = callback
        self.events, self.profile = event_callbacks, profile
        return SimpleNamespace(get_publisher_count=lambda: 1)

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        kinds = {"topic_type": self.published}
        return [SimpleNamespace(node_namespace=n, node_name=m, **kinds) for n, m in (("/arm", "here"), ("/", "rival"))]

    def get_subscriptions_info_by_topic(self, topic: str) -> list[Any]:
        node = SimpleNamespace(node_namespace="/", node_name="listener")
        bare = {"node_namespace": "_NODE_NAMESPACE_UNKNOWN_", "node_name": "_NODE_NAME_UNKNOWN_"}
        return [node, *(SimpleNamespace(**bare, endpoint_gid=[k] * 16) for k in (1, 2))]

    def destroy_subscription(self, subscription: Any) -> None:
        pass

    def destroy_node(self) -> None:
        self.destroyed = True


@pytest.fixture
def rclpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeNode]]:
    made: list[FakeNode] = []

    def create_node(name: str, **options: Any) -> FakeNode:
        made.append(FakeNode(name, **options))
        return made[-1]

    def get_message(name: str) -> str:
        if name.startswith("unitree"):
            raise ModuleNotFoundError(name)
        return name

    stub, runtime = MagicMock(), MagicMock()
    stub.create_node, stub.context.Context = create_node, SimpleNamespace
    stub.executors.ExternalShutdownException = RuntimeError
    stub.parameter.Parameter = lambda name, value: (name, value)
    stub.qos.QoSProfile, stub.qos.qos_policy_name_from_kind = SimpleNamespace, lambda kind: kind
    stub.qos.ReliabilityPolicy.BEST_EFFORT = "best effort"
    stub.event_handler.PublisherEventCallbacks = stub.event_handler.SubscriptionEventCallbacks = SimpleNamespace
    runtime.utilities.get_message = get_message
    for module in ("context", "duration", "event_handler", "executors", "parameter", "qos", "subscription"):
        monkeypatch.setitem(sys.modules, f"rclpy.{module}", getattr(stub, module))
    monkeypatch.setitem(sys.modules, "rclpy", stub)
    monkeypatch.setitem(sys.modules, "rosidl_runtime_py", runtime)
    monkeypatch.setitem(sys.modules, "rosidl_runtime_py.utilities", runtime.utilities)
    monkeypatch.delitem(sys.modules, "real.bus.ros", raising=False)
    yield made
    sys.modules.pop("real.bus.ros", None)


def test_topics_parameters_and_log_through_rclpy(rclpy: list[FakeNode]) -> None:
    args = ["--ros-args", "-r", "a:=b", "-p", "k:=1"]
    with open_node("here", "/arm", ros_args=args) as node, open_node("second") as second:
        (fake, _) = rclpy
        assert fake.options["parameter_overrides"] == [("k", 1)] and not fake.options["use_global_arguments"]
        assert fake.options["context"] is rclpy[1].options["context"]  # one DDS participant per process
        sub = node.subscribe(STATE, "a", qos.SENSOR)
        assert (fake.profile.reliability, fake.profile.depth) == ("best effort", 5)
        pub = node.publisher(STATE, "a", qos.COMMAND)
        msg = make(STATE, name=["x"], position=[1.0])
        assert pub.publish(msg)
        assert fake.sent == [("/arm/b", bytes(encode(msg, STATE)))]
        assert (sub.latest.msg.name, sub.latest.source_ns, sub.latest.count) == (["x"], 7, 1)
        assert (pub.matched, sub.matched, pub.other_writers()) == (1, 1, ["/rival"])
        assert sub.writers() == ["/arm/here", "/rival"]
        assert pub.readers() == ["/listener", *(f"an unnamed DDS participant ({f'0{k}' * 12})" for k in (1, 2))]
        assert node.wait_for(lambda: pub.matched == 1, 1.0)
        fake.events.incompatible_qos(SimpleNamespace(last_policy_kind="RELIABILITY"))
        assert "/arm/b" in node.incompatible()[0]
        second.log("info", "hello")
        assert rclpy[1].sent[-1][0] == "/rosout"
        with pytest.raises(BusError, match="unitree_go"):
            node.subscribe("unitree_go/msg/LowState", "lowstate")
    assert all(fake.destroyed for fake in rclpy)


def test_publishers_of_another_type_are_reported(rclpy: list[FakeNode]) -> None:
    with open_node("here", "/arm") as node:
        first = node.subscribe(STATE, "a")
        assert not node.incompatible()
        rclpy[0].published = "geometry_msgs/msg/Twist"
        assert any("/arm/a" in text and "Twist" in text for text in node.incompatible())
        node.subscribe("geometry_msgs/msg/Twist", "a")
        assert not node.incompatible(), "the second subscription matches"
        first.close()
        first.close()
        rclpy[0].published = STATE
        assert node.incompatible()


def test_refused_subscription_is_reported(rclpy: list[FakeNode], monkeypatch: pytest.MonkeyPatch) -> None:
    with open_node("here", "/arm") as node:
        monkeypatch.setattr(rclpy[0], "create_subscription", Mock(side_effect=RuntimeError("another type is there")))
        with pytest.raises(BusError, match="/arm/a: another type"):
            node.subscribe(STATE, "a")
