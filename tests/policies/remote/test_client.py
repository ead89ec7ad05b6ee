"""Clients of foreign, broken, slow and unreachable servers: every failure has a one-line message and is counted."""

import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from policies.base import Chunk, Size
from policies.errors import BundleError, RemoteFailure
from policies.remote import address_of
from policies.remote.client import ForeignPolicy, ServedPolicy, translation
from policies.remote.connection import Connection
from policies.remote.contract import read
from policies.remote.packing import pack, unpack
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.interface.spec import VectorSpec, box
from robot_rl.util.errors import ConfigError

FRONT = "observation.images.front"
SIZE = Size(3, 2, ObservationSpec.of(**{FRONT: picture_field(4, 6), LANGUAGE: LANGUAGE_FIELD}))
ACTIONS = VectorSpec((box("move", "x", "m", 0.0, 2.0), box("turn", "z", "rad", -1.0, 3.0)))
SPEC = ObservationSpec.from_vector(ACTIONS) | SIZE.extra_inputs
Foreign = Callable[..., str]


def observation(n: int = 1) -> dict[str, torch.Tensor]:
    pictures = torch.arange(n * 72, dtype=torch.uint8).reshape(n, 4, 6, 3)
    texts = encode([f"lift number {k}" for k in range(n)])
    return {"observation.state": torch.arange(3.0 * n).reshape(n, 3), FRONT: pictures, LANGUAGE: texts}


def answers(*message: Any) -> Callable[[ServerConnection], None]:
    """Return a server that sends empty metadata, then one answer per request, and disconnects."""

    def talk(connection: ServerConnection) -> None:
        connection.send(pack({}))
        for answer in message:
            connection.recv()
            connection.send(answer if isinstance(answer, bytes | str) else pack(answer))

    return talk


def chunk(*rows: tuple[float, float]) -> dict[str, Any]:
    return {"actions": np.array(rows, np.float64), "server_timing": {"infer_ms": 1.0}}


GOOD = chunk((1.0, 1.0), (2.0, 3.0), (9.0, -1.0))


def policy(address: str, timeout: float = 10.0, **options: Any) -> ForeignPolicy:
    return ForeignPolicy(Connection(address, timeout, first=timeout), SIZE, ACTIONS, {}, **options)


def infer(made: ForeignPolicy, n: int = 1) -> Chunk:
    return made.infer(observation(n), torch.Generator())


def test_physical_actions_are_scaled_and_clipped(foreign: Foreign) -> None:
    made = policy(foreign(answers(GOOD, GOOD)), execute=2)
    assert (made.horizon, made.execute) == (3, 2)
    torch.testing.assert_close(infer(made).actions, torch.tensor([[[0.0, 0.0], [1.0, 1.0], [1.0, -1.0]]]))
    assert made.connection.summary()["requests"] == 2 and made.connection.summary()["failures"] == {}
    made.close()


def test_each_request_has_one_robot_renamed_keys_and_a_prompt(foreign: Foreign) -> None:
    got: list[dict[str, Any]] = []

    def talk(connection: ServerConnection) -> None:
        connection.send(pack({"a server": "of another kind"}))
        for message in connection:
            assert isinstance(message, bytes)
            got.append(unpack(message))
            connection.send(pack(GOOD))

    names = translation(("observation.state=observation/state", f"{FRONT}=observation/image"), SPEC)
    made = ForeignPolicy(Connection(foreign(talk)), SIZE, ACTIONS, names)
    infer(made, 2)
    assert len(got) == 3 and all(set(m) == {"observation/state", "observation/image", "prompt"} for m in got)
    assert got[0]["prompt"] == "" and [m["prompt"] for m in got[1:]] == ["lift number 0", "lift number 1"]
    for row, message in enumerate(got[1:]):
        np.testing.assert_array_equal(message["observation/state"], observation(2)["observation.state"][row])
        np.testing.assert_array_equal(message["observation/image"], observation(2)[FRONT][row])
    made.close()


@pytest.mark.parametrize(("kind", "message", "answer"), [
    ("error", "reports an error: ValueError: no such robot", "Traceback:\n  line 1\nValueError: no such robot\n"),
    ("error", "reports an error: nothing", "\n"),
    ("nonsense", "no msgpack", b"\xc1 nonsense"),
    ("nonsense", "int, not a table", pack(3)),
    ("nonsense", "there is no 'actions'", {}),
    ("nonsense", "'actions' is list", {"actions": [[0.0, 0.0]]}),
    ("nonsense", "not an array of numbers", {"actions": np.array([[True, False]])}),
    ("shape", "of shape (2,), not (3, 2)", {"actions": np.zeros(2)}),
    ("shape", "of shape (1, 3, 2), not (3, 2)", {"actions": np.zeros((1, 3, 2))}),
    ("shape", "of shape (3, 7), not (3, 2)", {"actions": np.zeros((3, 7))}),
    ("shape", "of shape (4, 2), not (3, 2)", {"actions": np.zeros((4, 2))}),
    ("nonfinite", "NaN or infinite", chunk((0.0, 0.0), (float("nan"), 0.0), (0.0, 0.0))),
    ("nonfinite", "NaN or infinite", chunk((0.0, 0.0), (0.0, 0.0), (1e300, 0.0))),
])  # fmt: skip
def test_invalid_answers_are_reported_and_counted(foreign: Foreign, kind: str, message: str, answer: Any) -> None:
    address = foreign(answers(GOOD, answer))
    made = policy(address)
    with pytest.raises(RemoteFailure) as error:
        infer(made)
    assert error.value.kind == kind and message in str(error.value) and address in str(error.value)
    assert "\n" not in str(error.value) and error.value.code == 1
    with pytest.raises(RemoteFailure) as again:
        infer(made)
    assert again.value is error.value and made.connection.summary()["failures"] == {kind: 1}
    made.close()


@pytest.mark.parametrize(("start", "period"), [(1, 0.0), (math.inf, 0.0), (0, math.nan), (0, -0.1), (0, "soon")])
def test_invalid_chunk_times_are_counted(foreign: Foreign, start: Any, period: Any) -> None:
    rng = torch.Generator()
    answer = {"unit_actions": np.zeros((1, 3, 2)), "rng": rng.get_state().numpy(), "start": start, "period": period}
    terms: Any = SimpleNamespace(size=SIZE, horizon=3, execute=3, inpaints=False)
    made = ServedPolicy(Connection(foreign(answers(answer)), 10.0, first=10.0), terms)
    with pytest.raises(RemoteFailure, match="answers nonsense"):
        made.infer(observation(), rng)
    assert made.connection.summary()["failures"] == {"nonsense": 1}
    made.close()


def test_first_answer_is_checked_and_a_closed_connection_reported(foreign: Foreign) -> None:
    with pytest.raises(RemoteFailure, match="of no actions"):
        policy(foreign(answers({"actions": np.zeros((0, 2))})))
    with pytest.raises(RemoteFailure, match=r"of shape \(3, 7\), not \(n, 2\)"):
        policy(foreign(answers({"actions": np.zeros((3, 7))})))
    with pytest.raises(ConfigError, match="--execute is 4"):
        policy(foreign(answers(GOOD)), execute=4)
    made = policy(foreign(answers(GOOD)))
    with pytest.raises(RemoteFailure, match="has closed the connection") as error:
        infer(made)
    assert error.value.kind == "closed" and made.connection.failures == {"closed": 1}


def test_silent_server_times_out(foreign: Foreign) -> None:
    requested, end = threading.Event(), threading.Event()

    def talk(connection: ServerConnection) -> None:
        answers(GOOD)(connection)
        connection.recv()
        requested.set()
        end.wait(60)

    made = policy(foreign(talk), timeout=0.4)
    begun = time.monotonic()
    with pytest.raises(RemoteFailure, match=r"has not answered for 0\.4 s") as error:
        infer(made)
    assert error.value.kind == "timeout" and requested.is_set() and time.monotonic() - begun < 10
    end.set()


def test_server_that_stops_reading_times_out() -> None:
    """The request is larger than the system's buffers."""
    from websockets.server import ServerProtocol

    peers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def handshake() -> None:
            peers.append(listener.accept()[0])
            protocol = ServerProtocol()
            protocol.receive_data(peers[0].recv(2**16))
            (request,) = protocol.events_received()
            protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
            protocol.send_binary(pack({}))
            for data in protocol.data_to_send():
                peers[0].sendall(data)

        threading.Thread(target=handshake, daemon=True).start()
        connection = Connection(f"ws://127.0.0.1:{listener.getsockname()[1]}", 1.0)
        with pytest.raises(RemoteFailure, match="has read nothing for 1 s") as error:
            connection.ask({"observation.state": np.zeros(2**23)})
    assert error.value.kind == "timeout"
    peers[0].close()


def test_unreachable_and_foreign_servers_and_invalid_addresses_are_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RemoteFailure, match=r"does not answer within 0\.3 s") as error:
            Connection(address, 0.3)
        assert error.value.kind == "unreachable"
        listener.accept()[0].close()
        accepted: list[socket.socket] = []  # a reference keeps the socket open until the client closes it

        def greet() -> None:
            accepted.append(listener.accept()[0])
            accepted[-1].sendall(b"220 mail\r\n\r\n")

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(RemoteFailure, match="cannot be reached"):
            Connection(address, 10.0)
        accepted[-1].close()
    with pytest.raises(RemoteFailure, match="cannot be reached .*refused.*; start `robot-rl serve BUNDLE`"):
        Connection(address)
    for invalid in ("ws://", "ws://127.0.0.1:port", "ws://127.0.0.1:99999"):
        with pytest.raises((ConfigError, RemoteFailure)) as refused:
            Connection(invalid, 1.0)
        assert "\n" not in str(refused.value)


def test_damaged_contract_is_refused(foreign: Foreign) -> None:
    good: dict[str, Any] = dict(
        protocol=1, task="testbed:push", interface=None, robot={}, size={"observation": 3, "action": 2},
        horizon=4, execute=2, inpaints=True,
    )  # fmt: skip
    assert read({"robot_rl": good}, "ws://here") is not None and read({}, "ws://here") is None
    for wrong, message in (
        ({"protocol": 2}, "speaks protocol 2"), ({"horizon": 0}, "horizon"), ({"execute": 5}, "more than horizon"),
        ({"size": {"observation": 3}}, "action"), ({"task": "os.path:join"}, "os"),
        ({"interface": {"task": "x"}}, "it lacks"), ({"robot": "panda"}, "no table"),
    ):  # fmt: skip
        with pytest.raises((BundleError, ConfigError), match=message):
            read({"robot_rl": good | wrong}, "ws://here")
    with pytest.raises(BundleError, match="damaged or foreign"):
        read({"robot_rl": 3}, "ws://here")

    def send_garbage(connection: ServerConnection) -> None:
        connection.send(b"\xc1")
        with suppress(ConnectionClosed):  # the client may disconnect during the handshake
            connection.recv()

    with pytest.raises(RemoteFailure, match="nonsense"):
        Connection(foreign(send_garbage))


@pytest.mark.parametrize(("pairs", "message"), [
    (("observation.state",), "write OURS=THEIRS"),
    (("observation.state=",), "write OURS=THEIRS"),
    (("observation.stat=x",), "did you mean observation.state"),
    (("observation.state=x", "observation.state=y"), "given twice"),
    (("observation.state=x", f"{FRONT}=x"), "given twice"),
])  # fmt: skip
def test_invalid_key_pairs_are_refused(pairs: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translation(pairs, SPEC)


def test_address_of_a_path_with_one_slash() -> None:
    assert address_of(Path("ws://127.0.0.1:8000")) == address_of("ws://127.0.0.1:8000") == "ws://127.0.0.1:8000"
    assert address_of(Path("runs/ws")) == address_of("random:panda-lift") == ""
