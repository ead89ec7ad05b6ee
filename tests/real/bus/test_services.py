"""Services over DDS, in one process and between two."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cyclonedds.qos import Policy
from hypothesis import given
from hypothesis import strategies as st

from real.bus import BusError, Node, encode, make, open_node, qos, register, type_hash
from real.bus.dds_service import join, split
from real.bus.endpoint import Reader, Writer
from real.bus.names import dds_reply, dds_request
from real.bus.service import Worker

WAIT = 10.0  # longest wait for discovery and responses, s
ADD, TRIGGER, SET = "example_interfaces/srv/AddTwoInts", "std_srvs/srv/Trigger", "std_srvs/srv/SetBool"
IMPORT = "from real.bus import *\nfrom real.bus import qos\nimport threading"


@pytest.fixture
def node(loopback: int) -> Iterator[Node]:
    with open_node("here", "/arm") as opened:
        yield opened


def add(request: Any) -> Any:
    return make(f"{ADD}_Response", sum=request.a + request.b)


def numbers(a: int, b: int) -> Any:
    return make(f"{ADD}_Request", a=a, b=b)


def done(success: bool = True, message: str = "") -> Any:
    return make(f"{TRIGGER}_Response", success=success, message=message)


TRIGGERED = f"make('{TRIGGER}_Request')"


def test_calls_go_both_ways(node: Node, peer: Any) -> None:
    node.service(TRIGGER, "~/reset", lambda request: done(message="home"))
    peer.do(f"{IMPORT}\nnode = open_node('there', '/arm')\nreset = node.client({TRIGGER!r}, 'here/reset')")
    peer.do(f"server = node.service({ADD!r}, 'add', lambda r: make('{ADD}_Response', sum=r.a + r.b))")
    assert peer.do(f"reset.call({TRIGGERED}, 10).message") == "home"
    client = node.client(ADD, "/arm/add")
    assert client.call(numbers(2**62, -1), WAIT).sum == 2**62 - 1
    assert [f.result(WAIT).sum for f in [client.send(numbers(k, k)) for k in range(5)]] == [0, 2, 4, 6, 8]


def test_header_is_that_of_rmw_cyclonedds() -> None:
    raw = encode(numbers(1, -1), f"{ADD}_Request")
    head = bytes.fromhex("00010000 0807060504030201 0200000000000000")
    assert join(0x0102030405060708, 2, raw) == head + bytes(raw[4:])
    big = bytes.fromhex("00000000 0102030405060708 0000000000000002 00")
    assert split(big) == (0x0102030405060708, 2, bytes(5)) and join(*split(big)) == big
    with pytest.raises(BusError, match="19 bytes"):
        split(bytes(19))


@given(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=64), st.booleans())
def test_header_survives_a_round_trip(guid: int, sequence: int, body: bytes, little: bool) -> None:
    raw = bytes([0, little, 0, 0]) + body
    assert split(join(guid, sequence, raw)) == (guid, sequence, raw)


def test_endpoints_carry_ids_hashes_and_the_node(node: Node, peer: Any) -> None:
    node.service(TRIGGER, "reset", lambda request: done())
    node.client(ADD, "add")
    peer.do(f"{IMPORT}\nnode = open_node('there')")
    wanted = {
        ("readers", "rq/arm/resetRequest"): (f"{TRIGGER}_Request", "serviceid"),
        ("writers", "rr/arm/resetReply"): (f"{TRIGGER}_Response", "serviceid"),
        ("writers", "rq/arm/addRequest"): (f"{ADD}_Request", "clientid"),
        ("readers", "rr/arm/addReply"): (f"{ADD}_Response", "clientid"),
    }
    idents = []
    for (kind, topic), (type_name, key) in wanted.items():
        own = f"[node.participant.owner(e.key.bytes) for e in node.participant.endpoints({kind!r}, {topic!r})]"
        assert peer.do(f"node.wait_for(lambda: {own} == ['/arm/here'], 10)"), topic
        (end,) = node.participant.endpoints(kind, topic)
        ident, typehash, rest = end.qos[Policy.Userdata].data.decode().split(";")
        assert (typehash, rest) == (f"typehash={type_hash(type_name)}", "")
        assert ident.startswith(f"{key}=") and ident.count(".") == 15
        assert end.qos[Policy.History].depth == 10 and end.qos[Policy.Durability] == Policy.Durability.Volatile
        idents.append(ident)
    assert idents[0] == idents[1] and idents[2] == idents[3]


def test_concurrent_clients_get_their_own_replies(node: Node, peer: Any) -> None:
    node.service(ADD, "add", add)
    clients = [node.client(ADD, "add") for _ in range(3)]
    peer.do(f"{IMPORT}\nnode = open_node('there')\nclient = node.client({ADD!r}, '/arm/add')")
    peer.do(f"ask = lambda k: client.call(make('{ADD}_Request', a=1000, b=k), 10).sum")
    with ThreadPoolExecutor(7) as pool:
        there = pool.submit(peer.do, "[ask(k) for k in range(40)]")
        here = [(k, pool.submit(clients[k % 3].call, numbers(k, 1), WAIT)) for k in range(120)]
        assert [future.result().sum for _, future in here] == [k + 1 for k, _ in here]
        assert there.result() == [1000 + k for k in range(40)]


def test_topics_pass_while_a_handler_works(node: Node) -> None:
    heard = threading.Event()
    node.service(TRIGGER, "slow", lambda request: done(heard.wait(WAIT)))
    node.subscribe("std_msgs/msg/Bool", "stop", callback=lambda sample: heard.set())
    stop, client = node.publisher("std_msgs/msg/Bool", "stop"), node.client(TRIGGER, "slow")
    assert client.wait(WAIT) and node.wait_for(lambda: stop.matched == 1, WAIT)
    future = client.send(make(f"{TRIGGER}_Request"))
    stop.publish(make("std_msgs/msg/Bool"))
    assert future.result(WAIT).success


def test_failed_handler_ends_neither_thread(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([ZeroDivisionError("bad handler"), make("std_msgs/msg/Bool"), done()])

    def handle(request: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    node.service(TRIGGER, "odd", handle)
    client = node.client(TRIGGER, "odd")
    for _ in range(2):
        with pytest.raises(BusError, match="/arm/odd did not answer within 0.2 s.*log"):
            client.wait(WAIT) and client.call(make(f"{TRIGGER}_Request"), 0.2)
    assert client.call(make(f"{TRIGGER}_Request"), WAIT).success
    assert "bad handler" in caplog.text and "cannot publish std_msgs/msg/Bool" in caplog.text


def test_absent_server_and_other_type_are_named(node: Node, peer: Any) -> None:
    client = node.client(TRIGGER, "reset")
    with pytest.raises(BusError, match=r"no server of /arm/reset \(std_srvs/srv/Trigger\) within 0.01 s: start it"):
        client.call(make(f"{TRIGGER}_Request"), 0.01)
    with pytest.raises(BusError, match="no server of /arm/reset"):
        client.send(make(f"{TRIGGER}_Request"))
    peer.do(f"{IMPORT}\nnode = open_node('other')\nserver = node.service({SET!r}, '/arm/reset', lambda r: None)")
    assert node.wait_for(lambda: any("/other" in text for text in node.incompatible()), WAIT)
    with pytest.raises(BusError, match="client on /arm/reset uses std_srvs/srv/Trigger.* the server /other"):
        client.call(make(f"{TRIGGER}_Request"), 0.01)
    with pytest.raises(BusError, match="Trigger_Request"):
        node.client("std_srvs/srv/Triger", "reset")
    with pytest.raises(BusError, match=f"cannot publish {TRIGGER}_Response"):
        client.call(done())


def test_killed_server_fails_its_calls(node: Node, peer: Any) -> None:
    peer.do(f"{IMPORT}\nnode = open_node('victim')\nbusy = threading.Event()")
    peer.do(f"server = node.service({TRIGGER!r}, '/arm/long', lambda r: busy.set() or threading.Event().wait())")
    client = node.client(TRIGGER, "long")
    assert client.wait(WAIT)
    future = client.send(make(f"{TRIGGER}_Request"))
    assert peer.do("busy.wait(10)")
    peer.process.kill()
    with pytest.raises(BusError, match="/arm/long: its server left before it answered"):
        future.result(WAIT)
    with pytest.raises(BusError, match="no server"):
        client.call(make(f"{TRIGGER}_Request"), 0.01)


def test_server_of_another_vendor_is_refused(node: Node) -> None:
    """A server without an id gets nothing: Fast DDS would take our header for the request."""
    got: list[bytes] = []
    with open_node("fast") as opened:
        fast: Any = opened
        wire = dds_request("/arm/add"), dds_reply("/arm/add")

        def take(raw: bytes, *_: Any) -> None:
            got.append(raw)
            fast.participant.notify()

        reader = Reader(fast, "", f"{ADD}_Request", qos.DEFAULT, take, wire[0])
        writer = Writer(fast, "", f"{ADD}_Response", qos.DEFAULT, wire[1])
        fast._entry.readers.append(reader.guid)
        client: Any = node.client(ADD, "add")
        node.service(ADD, "add", add)  # beside a server of our kind, too
        for attempt in (client.send, client.call):
            assert node.wait_for(lambda: len(reader.handles()) == len(writer.handles()) == 1, WAIT)
            assert node.wait_for(lambda: len(client._servers()) == 1, WAIT)
            with pytest.raises(BusError, match="/arm/add: nothing was sent to /fast, .*: use RMW_"):
                attempt(numbers(1, 2))
        mark = join(0, 0, encode(numbers(0, 0), f"{ADD}_Request"))
        client._pair.writer.write(mark)
        assert fast.wait_for(lambda: bool(got), WAIT) and got == [mark]
        for end in (reader, writer):
            end.delete()
    assert client.call(numbers(1, 2), WAIT).sum == 3


def test_client_of_another_vendor_gets_no_response(
    node: Node, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    seen: list[int] = []
    node.service(ADD, "add", lambda request: seen.append(request.a) or add(request))
    with open_node("fast") as opened:
        fast: Any = opened
        writer = Writer(fast, "", f"{ADD}_Request", qos.DEFAULT, dds_request("/arm/add"))
        fast._entry.writers.append(writer.guid)
        assert fast.wait_for(lambda: len(writer.handles()) == 1, WAIT)
        for _ in range(2):
            writer.write(join(0, 0, encode(numbers(1, 2), f"{ADD}_Request")))
        client = node.client(ADD, "add")
        assert client.call(numbers(3, 4), WAIT).sum == 7 and seen == [3]
        eventually(lambda: caplog.records)
        writer.delete()
    (record,) = caplog.records
    assert "/arm/add: no response for /fast" in record.getMessage() and "RMW_IMPLEMENTATION" in record.getMessage()


def test_call_in_a_callback_is_refused(node: Node) -> None:
    node.service(TRIGGER, "reset", lambda request: done())
    client, errors = node.client(TRIGGER, "reset"), []
    assert client.wait(WAIT)

    def callback(sample: Any) -> None:
        try:
            client.call(make(f"{TRIGGER}_Request"))
        except BusError as error:
            errors.append(str(error))

    sub, pub = node.subscribe("std_msgs/msg/Bool", "x", callback=callback), node.publisher("std_msgs/msg/Bool", "x")
    assert node.wait_for(lambda: pub.matched == 1, WAIT) and pub.publish(make("std_msgs/msg/Bool"))
    assert sub.wait(WAIT, after=0)
    node.close()  # joins the reader thread
    assert "callback" in errors[0]


def test_closed_server_and_client(node: Node) -> None:
    entered, leave = threading.Event(), threading.Event()
    server = node.service(TRIGGER, "reset", lambda request: entered.set() or done(leave.wait(WAIT)))
    client = node.client(TRIGGER, "reset")
    assert client.wait(WAIT)
    future = client.send(make(f"{TRIGGER}_Request"))
    assert entered.wait(WAIT)
    client.close()
    client.close()
    with pytest.raises(BusError, match="closed"):
        future.result(WAIT)
    with pytest.raises(BusError, match="closed"):
        client.call(make(f"{TRIGGER}_Request"), WAIT)
    leave.set()
    server.close()
    server.close()
    with pytest.raises(BusError, match="no server"):
        node.client(TRIGGER, "reset").call(make(f"{TRIGGER}_Request"), 0.01)


def test_own_services_and_actions_are_registered() -> None:
    register("lab_msgs/srv/Weigh", "string what\n---\nfloat64 kilograms\nWeight[] each")
    register("lab_msgs/msg/Weight", "float64 grams")
    assert make("lab_msgs/srv/Weigh_Response", each=[{"grams": 2}]).each[0].grams == 2.0
    register("lab_msgs/action/Pour", "float64 liters\n---\n---\nfloat64 poured")
    assert make("lab_msgs/action/Pour_SendGoal_Request", goal={"liters": 1}).goal.liters == 1.0
    for name, text in (("lab_msgs/srv/Bad", "float64 x"), ("lab_msgs/Bad", ""), ("lab_msgs/idl/Bad", "")):
        with pytest.raises(BusError, match=name):
            register(name, text)


def test_client_without_a_reply_reader_is_reported(
    node: Node, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    """A server waits 0.1 s for the reader, as rmw_cyclonedds does, and then serves others."""
    node.service(ADD, "add", add)
    with open_node("half") as opened:
        half: Any = opened
        wire, ident = dds_request("/arm/add"), "clientid=1.2;"
        writer = Writer(half, "", f"{ADD}_Request", qos.DEFAULT, wire, ident)
        half._entry.writers.append(writer.guid)
        assert half.wait_for(lambda: len(writer.handles()) == 1, WAIT)
        writer.write(join(1, 1, encode(numbers(1, 2), f"{ADD}_Request")))
        eventually(lambda: "/arm/add: no reply reader of /half" in caplog.text)
        assert node.client(ADD, "add").call(numbers(1, 2), WAIT).sum == 3
        writer.delete()


def test_worker_drops_what_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    worker, go, done = Worker("/arm/here", logging.getLogger("real.bus")), threading.Event(), []
    worker.submit(lambda: done.append(go.wait(WAIT)))
    for k in range(1100):
        worker.submit(lambda k=k: done.append(k))
    assert "/arm/here drops a request: 1000 wait" in caplog.text
    last = threading.Event()
    go.set()
    while last not in done:  # once there is room
        worker.submit(lambda: done.append(last))
    assert done[0] is True and done[1:1000] == list(range(999))
    worker.close()
    worker.submit(lambda: done.clear())
    assert done
