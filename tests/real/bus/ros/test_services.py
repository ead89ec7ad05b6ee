"""Services between our nodes and nodes as ROS users write them (Fast DDS)."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from real.bus import BusError, Node, make, open_node

pytest.importorskip("rclpy")
WAIT = 20.0  # longest wait for discovery between two DDS vendors, s, which takes about a second
SET, TRIGGER = "std_srvs/srv/SetBool", "std_srvs/srv/Trigger"


@pytest.fixture
def ours(user: Any) -> Iterator[Node]:
    with open_node("here", "/arm", backend="rclpy") as node:
        yield node


@pytest.fixture
def cyclone(user: Any) -> Iterator[Node]:
    with open_node("here", "/arm", backend="dds") as node:
        yield node


def press(data: bool) -> Any:
    return make(f"{SET}_Request", data=data)


def turned(request: Any) -> Any:
    return make(f"{SET}_Response", success=not request.data, message="ours")


def test_our_rclpy_client_calls_a_plain_server(ours: Node, user: Any) -> None:
    user.do("switch = start(Switch())")
    client = ours.client(SET, "switch")
    assert [client.call(press(d), WAIT).success for d in (True, False)] == [True, False]
    assert [f.result(WAIT).message for f in [client.send(press(True)) for _ in range(3)]] == ["3", "4", "5"]
    user.do("stop(switch)")
    assert ours.wait_for(lambda: not client.wait(0.0), WAIT)
    with pytest.raises(BusError, match="no server of /arm/switch"):
        client.call(press(True), 0.01)


def test_plain_client_calls_our_rclpy_server(ours: Node, user: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Topics pass while the handler works; a handler that fails leaves its request unanswered."""
    heard = threading.Event()

    def handle(request: Any) -> Any:
        if request.data:
            raise ZeroDivisionError("bad handler")
        assert heard.wait(WAIT)
        return turned(request)

    service = ours.service(SET, "switch", handle)
    ours.subscribe("std_msgs/msg/String", "robot_description", callback=lambda sample: heard.set())
    user.do("presser = start(Presser())")
    assert user.do("until(presser.client.service_is_ready)")
    user.do("presser.press(True)")
    user.do("presser.press(False)")
    user.do("from rclpy.qos import *; voice = start(Describer('x', profile(depth=1, durability="
            "DurabilityPolicy.TRANSIENT_LOCAL)))")  # fmt: skip
    assert user.do("until(lambda: presser.answers()[1])") == (True, "ours")
    assert user.do("presser.answers()[0]") is None and "bad handler" in caplog.text
    service.close()
    assert user.do("until(lambda: not presser.client.service_is_ready())")
    user.do("stop(presser, voice)")


def test_both_ends_are_ours(ours: Node, user: Any) -> None:
    with open_node("there", "/arm", backend="rclpy") as there:
        there.service(TRIGGER, "reset", lambda request: make(f"{TRIGGER}_Response", success=True))
        client = ours.client(TRIGGER, "reset")
        assert client.call(make(f"{TRIGGER}_Request"), WAIT).success
        there.service(TRIGGER, "never", lambda request: None)
        lost = ours.client(TRIGGER, "never")
        assert lost.wait(WAIT)
        with pytest.raises(BusError, match="/arm/never did not answer within 0.1 s"):
            lost.call(make(f"{TRIGGER}_Request"), 0.1)
        future = client.send(make(f"{TRIGGER}_Request"))
        client.close()
        client.close()
        assert future.done()
        with pytest.raises(BusError, match="closed"):
            client.call(make(f"{TRIGGER}_Request"))


def test_fast_dds_server_is_refused_by_name(cyclone: Node, user: Any) -> None:
    """Nothing is sent to it: its first request is that of a client of its own vendor."""
    user.do("switch = start(Switch())")
    client: Any = cyclone.client(SET, "switch")
    assert cyclone.wait_for(lambda: bool(client._foreign()), WAIT)
    with pytest.raises(BusError, match="/arm/switch: nothing was sent to /arm/switch, of another DDS vendor.*RMW"):
        client.call(press(True), WAIT)
    with pytest.raises(BusError, match="nothing was sent"):
        client.send(press(True))
    user.do("presser = start(Presser())")
    assert user.do("until(presser.client.service_is_ready)")
    user.do("presser.press(True)")
    assert user.do("until(lambda: presser.answers()[0])") == (True, "1")
    user.do("stop(switch, presser)")


def test_fast_dds_client_gets_no_response(
    cyclone: Node, user: Any, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    called: list[Any] = []
    cyclone.service(SET, "switch", lambda request: called.append(request) or turned(request))
    user.do("presser = start(Presser())")
    assert user.do("until(presser.client.service_is_ready)"), "Fast DDS does not notice the vendor"
    user.do("presser.press(True)")
    eventually(lambda: "/arm/switch: no response for /arm/presser" in caplog.text)
    with open_node("there", "/arm", backend="dds") as there:
        assert there.client(SET, "switch").call(press(False), WAIT).success and len(called) == 1
    assert user.do("presser.answers()") == [None]
    user.do("stop(presser)")


def test_type_without_a_package_is_refused(ours: Node) -> None:
    with pytest.raises(BusError, match=r"rclpy has no example_interfaces/srv/AddTwoInts .*bus:=dds"):
        ours.client("example_interfaces/srv/AddTwoInts", "add")


def test_plain_node_lists_our_services_and_clients(node: Node, user: Any) -> None:
    """As `ros2 node info` does."""
    service, client = node.service(SET, "switch", turned), node.client(TRIGGER, "reset")
    user.do("looker = start(Presser())")
    assert user.do("until(lambda: ('here', '/arm') in looker.get_node_names_and_namespaces())")
    listed = "dict(looker.get_{}_names_and_types_by_node('here', '/arm')).get({!r})"
    for kind, name, type_name in (("service", service.name, SET), ("client", client.name, TRIGGER)):
        assert user.do(f"until(lambda: {listed.format(kind, name)})") == [type_name]
    service.close()
    assert user.do(f"until(lambda: {listed.format('service', service.name)} is None)")
    user.do("stop(looker)")
