"""`robot-rl serve` as a process: equal to the local policy, and robust against invalid clients."""

import json
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from policies.base import Policy, Prefix, Size
from policies.bundle import Bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.remote.client import ServedPolicy
from policies.remote.connection import Connection
from policies.remote.contract import read
from policies.remote.packing import pack, unpack
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.words import words_of
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

Serve = Callable[..., tuple[str, subprocess.Popen[str]]]
FRONT = "observation.images.front"
TEXTS = ["lift the ball", "put the cube next to the ball"]
LIFT = tasks.get("panda-lift").interface


def diffusion() -> tuple[Policy, Any]:
    """Return a policy of a robot's task, with its contract."""
    torch.manual_seed(0)
    pipeline = Pipeline(LIFT)
    config = DiffusionConfig(horizon=6, execute=3, hidden=32, layers=1, train_steps=10, sample_steps=5)
    return DiffusionPolicy(Size(pipeline.observer.spec.size, pipeline.actions.size), config).eval(), LIFT


def visual() -> tuple[Policy, Any]:
    """Return a policy with pictures and instructions, without a contract."""
    torch.manual_seed(0)
    size = Size(3, 2, ObservationSpec.of(**{FRONT: picture_field(16, 24), LANGUAGE: LANGUAGE_FIELD}))
    backbone = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), shift=1, words=words_of(TEXTS))
    config = VLAFlowConfig(horizon=4, execute=2, hidden=16, layers=1, sample_steps=3, encoder=backbone)
    return VLAFlowPolicy(size, config).eval(), None


def recurrent() -> tuple[Policy, Any]:
    """Return a policy with a history, without a contract."""
    torch.manual_seed(0)
    policy = FeedforwardPolicy(Size(3, 2), FeedforwardConfig(history=4, hidden=(16,)))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return policy.eval(), None


MAKE = {make.__name__: make for make in (diffusion, visual, recurrent)}


@pytest.fixture(scope="module")
def served(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return the address of a server of a policy, by name."""
    addresses: dict[str, str] = {}

    def address(name: str) -> str:
        if name not in addresses:
            policy, interface = MAKE[name]()
            robot = Pipeline(interface).robot.fingerprint() if interface else {}
            folder = tmp_path_factory.mktemp(name) / "bundle"
            save_bundle(Bundle(policy, interface, robot, task="" if interface else "testbed:push"), folder)
            addresses[name] = serve(folder, "--threads", "1")[0]
        return addresses[name]

    yield address


def client(address: str) -> ServedPolicy:
    connection = Connection(address)
    terms = read(connection.metadata, address)
    assert terms is not None
    return ServedPolicy(connection, terms)


def observation(policy: Policy, n: int, seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    made = {"observation.state": torch.randn(n, policy.size.observation, generator=rng)}
    for key, shape in policy.size.pictures.items():
        made[key] = torch.randint(0, 256, (n, *shape), generator=rng, dtype=torch.uint8)
    return made | ({LANGUAGE: encode([TEXTS[k % 2] for k in range(n)])} if LANGUAGE in policy.size.extra_inputs else {})


@pytest.mark.parametrize("name", ["diffusion", "visual"])
@pytest.mark.parametrize("n", [1, 3])
def test_served_and_local_policy_are_bit_identical(served: Callable[[str], str], name: str, n: int) -> None:
    local, remote = MAKE[name]()[0], client(served(name))
    assert (remote.horizon, remote.execute, remote.inpaints) == (local.horizon, local.execute, True)
    local_rng, remote_rng = (torch.Generator().manual_seed(7) for _ in range(2))
    chunks = []
    for k in range(3):
        observed = observation(local, n, k)
        chunks.append(local.infer(observed, local_rng).actions)
        assert torch.equal(remote.infer(observed, remote_rng).actions, chunks[-1])
        assert torch.equal(local_rng.get_state(), remote_rng.get_state())
    assert not torch.equal(chunks[0], chunks[1])
    weights = torch.linspace(1, 0, local.horizon).expand(n, -1).contiguous()
    prefix = Prefix(chunks[0], weights, 5.0)
    continued = local.infer(observed, local_rng, prefix).actions
    assert torch.equal(remote.infer(observed, remote_rng, prefix).actions, continued)
    assert torch.equal(continued[:, 0], chunks[0][:, 0]), "frozen"
    remote.close()


def test_each_client_has_its_own_history(served: Callable[[str], str]) -> None:
    address, rng = served("recurrent"), torch.Generator()
    locals_, clients = [MAKE["recurrent"]()[0] for _ in range(2)], [client(address) for _ in range(2)]
    for step in range(8):
        for k, (local, remote) in enumerate(zip(locals_, clients, strict=True)):
            if step == 4 and k:
                for policy in (local, remote):
                    policy.reset(torch.tensor([1]))
            if step == 6:
                for policy in (local, remote):
                    policy.reset()
            observed = observation(local, 2 + k, 10 * step + k)
            assert torch.equal(remote.infer(observed, rng).actions, local.infer(observed, rng).actions)
    for remote in clients:
        remote.close()


def one(policy: Policy, seed: int = 0) -> dict[str, Any]:
    """Return one robot's observation in openpi's format."""
    observed = observation(policy, 1, seed)
    text = {"prompt": TEXTS[0]} if observed.pop(LANGUAGE, None) is not None else {}
    return {key: value[0].numpy() for key, value in observed.items()} | text


def test_openpi_clients_get_physical_actions_of_one_robot(served: Callable[[str], str]) -> None:
    local, interface = MAKE["diffusion"]()
    actions = Pipeline(interface).actions
    with connect(served("diffusion"), compression=None, max_size=None) as socket:
        reply = unpack(_bytes(socket.recv()))["robot_rl"]
        assert reply["task"] == "panda-lift" and reply["interface"] == json.loads(json.dumps(interface.to_json()))
        assert reply["actions"]["units"] == "physical" and reply["rate"] == interface.controller.rate
        assert reply["observation"]["observation.state"]["names"] == Pipeline(interface).observer.spec.names
        for k in range(2):
            observed = one(local, k)
            double = observed["observation.state"].astype(np.float64)
            socket.send(pack(observed | {"seed": 5, "observation.state": double}))
            answer = unpack(_bytes(socket.recv()))
            assert set(answer) == {"actions", "server_timing"} and answer["actions"].dtype == np.float32
            wanted = local.infer(observation(local, 1, k), torch.Generator().manual_seed(5)).actions[0]
            np.testing.assert_array_equal(answer["actions"], actions.to_physical(wanted).numpy())
        assert set(answer["server_timing"]) == {"infer_ms", "prev_total_ms"}
        socket.send(pack(one(local)))  # without a seed: noise from the connection's generator
        first = unpack(_bytes(socket.recv()))["actions"]
        socket.send(pack(one(local)))
        assert not np.array_equal(unpack(_bytes(socket.recv()))["actions"], first)


def test_prompt_is_the_instruction(served: Callable[[str], str]) -> None:
    local = MAKE["visual"]()[0]
    with connect(served("visual"), compression=None, max_size=None) as socket:
        socket.recv()
        found = []
        for text in TEXTS:
            socket.send(pack(one(local) | {"prompt": text, "seed": 1}))
            found.append(unpack(_bytes(socket.recv()))["actions"])
            observed = observation(local, 1) | {LANGUAGE: encode([text])}
            wanted = local.infer(observed, torch.Generator().manual_seed(1)).actions[0]
            np.testing.assert_array_equal(found[-1], wanted.numpy())
        assert not np.array_equal(*found)


STATE = np.zeros(MAKE["diffusion"]()[0].size.observation, np.float32)
WRONG: list[tuple[Any, str]] = [
    ("what?", "not a text"),
    (b"\xc1", "no message"),
    (pack([1]), "a table, not list"),
    ({}, "lacks 'observation.state'"),
    ({"observation.state": STATE, "state": STATE}, "has 'state', which is not in its spec"),
    ({"observation.state": STATE[:-1]}, "has shape"),
    ({"observation.state": [0.0]}, "is list, not an array"),
    ({"observation.state": STATE.astype(np.int32)}, "not float32"),
    ({"observation.state": STATE, "robots": 0}, "robots is 0"),
    ({"observation.state": STATE[None], "robots": 2}, "robots is 2, and the observation is of 1"),
    ({"observation.state": STATE, "seed": -1}, "seed is -1"),
    ({"observation.state": STATE, "rng": np.zeros(3, np.uint8)}, "no state of a generator"),
    ({"observation.state": STATE, "reset": "yes"}, "reset is 'yes'"),
    ({"observation.state": STATE, "prefix": 3}, "prefix is a table"),
]
for actions_, weights_, guidance_, said_ in (
    (np.zeros((5, 4), "f4"), np.zeros(5, "f4"), 1.0, "prefix.actions have shape"),
    (np.zeros((6, 4), "f4"), np.zeros(5, "f4"), 1.0, "prefix.weights"),
    (np.zeros((6, 4), "f4"), np.full(6, 2, "f4"), 1.0, "prefix.weights"),
    (np.full((6, 4), np.nan, "f4"), np.zeros(6, "f4"), 1.0, "prefix.actions are finite"),
    (np.zeros((6, 4), "f4"), np.zeros(6, "f4"), -1.0, "prefix.guidance"),
):
    prefix_ = {"actions": actions_, "weights": weights_, "guidance": guidance_}
    WRONG.append(({"observation.state": STATE, "prefix": prefix_}, said_))


def test_invalid_request_gets_an_error_and_affects_no_other_client(served: Callable[[str], str]) -> None:
    local, address = MAKE["diffusion"]()[0], served("diffusion")
    good, rng, remote_rng = client(address), *(torch.Generator().manual_seed(1) for _ in range(2))
    for request, reply in WRONG:
        with connect(address, compression=None, max_size=None) as socket:
            socket.recv()
            socket.send(request if isinstance(request, str | bytes) else pack(request))
            text = socket.recv()
            assert isinstance(text, str) and reply in text and "\n" not in text, (request, text)
            with pytest.raises(ConnectionClosed):
                socket.recv()
        observed = observation(local, 1)
        assert torch.equal(good.infer(observed, remote_rng).actions, local.infer(observed, rng).actions)
    good.close()


def test_concurrent_clients_get_their_own_answers(served: Callable[[str], str]) -> None:
    local, address = MAKE["diffusion"]()[0], served("diffusion")
    wrong: list[int] = []

    def talk(k: int) -> None:
        remote, local_rng, remote_rng = client(address), *(torch.Generator().manual_seed(k) for _ in range(2))
        for step in range(10):
            observed = observation(local, 1, 100 * k + step)
            if not torch.equal(remote.infer(observed, remote_rng).actions, LOCAL[k].infer(observed, local_rng).actions):
                wrong.append(k)
        remote.close()

    LOCAL = [MAKE["diffusion"]()[0] for _ in range(4)]
    threads = [threading.Thread(target=talk, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_server_and_prints_counts(serve: Serve, tmp_path: Path, number: signal.Signals) -> None:
    policy = MAKE["recurrent"]()[0]
    save_bundle(Bundle(policy, None, {}, task="testbed:push"), tmp_path / "bundle")
    address, process = serve(tmp_path / "bundle")
    remote = client(address)
    remote.infer(observation(policy, 1), torch.Generator())
    process.send_signal(number)
    reply = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and "1 clients, 1 requests, 0 refused" in reply and "Traceback" not in reply


def test_health_check_answers_and_browsers_and_ports_in_use_are_refused(served: Any, tmp_path: Path) -> None:
    from robot_rl.cli.remote import Serve as Command
    from robot_rl.util.errors import ConfigError, UserError

    save_bundle(Bundle(MAKE["recurrent"]()[0], None, {}, task="testbed:push"), tmp_path / "bundle")
    address = served("diffusion")
    with urllib.request.urlopen(address.replace("ws:", "http:") + "/healthz", timeout=20) as answer:
        assert answer.status == 200
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, additional_headers={"Origin": "http://elsewhere.example"})
    port = int(address.rpartition(":")[2])
    with pytest.raises(UserError, match=f"cannot serve at 127.0.0.1:{port} .*in use.*; choose another --host or"):
        Command(tmp_path / "bundle", port=port).run()
    with pytest.raises(ConfigError, match="is no bundle"):
        Command(tmp_path / "none").run()


def _bytes(message: str | bytes) -> bytes:
    assert isinstance(message, bytes), message
    return message
