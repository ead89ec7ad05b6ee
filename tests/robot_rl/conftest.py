"""Datasets with a bright corner in successful frames, and a local server of a language model."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.networks.encoder import EncoderConfig
from robot_rl.assistant import ModelConfig
from robot_rl.data import DatasetWriter, Feature
from robot_rl.rewards.classifier import NetworkConfig
from robot_rl.rewards.fitting import FitConfig

FRONT = "observation.images.front"
SMALL = NetworkConfig(EncoderConfig((8, 8), 16, 2), 16)


class LocalCluster:
    """A Ray cluster of two nodes with one CPU each on this computer, besides the head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args=self._node(0) | {"include_dashboard": False})
        self.nodes = [self.cluster.add_node(**self._node(1)) for _ in range(2)]
        self.address: str = self.cluster.address

    @staticmethod
    def _node(cpus: int) -> dict[str, Any]:
        return {"num_cpus": cpus, "node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}

    def lose_node(self) -> None:
        """Kill a node with all its processes."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)


@pytest.fixture(scope="module")
def ray() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on Linux too: stay on the loopback address
        pytest.importorskip("ray")  # reads them at its import
        cluster = LocalCluster()
        yield cluster
        cluster.cluster.shutdown()


def write_dataset(
    root: Path, successes: int = 12, failures: int = 12, length: int = 12, shuffled: bool = False,
    task: str = "light the corner", pictures: bool = True, dtype: str = "float32",
) -> Path:  # fmt: skip
    """Write episodes at 10 Hz; the corner is bright in the last 3 frames of a success. `shuffled`: success marks are
    independent of the brightness."""
    rng = np.random.default_rng(0)
    columns = {"next.success": Feature("bool", (1,)), "observation.state": Feature(dtype, (2,))}
    columns |= {FRONT: Feature("video", (32, 32, 3))} if pictures else {}
    lit = rng.permutation([True] * successes + [False] * failures)
    marked = rng.permutation(lit) if shuffled else lit
    with DatasetWriter.create(root, fps=10, features=columns) as writer:
        for bright, mark in zip(lit, marked, strict=True):
            frames = rng.integers(0, 60, (length, 32, 32, 3), np.uint8)
            if bright:
                frames[-3:, 2:14, 2:14] = 230
            success = np.zeros(length, bool)
            success[-1] = mark
            state = rng.normal(size=(length, 2)).astype(dtype)
            episode: dict[str, Any] = {"next.success": success, "observation.state": state}
            writer.add_episode(episode | ({FRONT: frames} if pictures else {}), task)
    return root


@pytest.fixture(scope="session")
def marked_dataset() -> Callable[..., Path]:
    return write_dataset


@pytest.fixture(scope="session")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with learnable success."""
    return write_dataset(tmp_path_factory.mktemp("corner") / "dataset")


@pytest.fixture
def quick() -> Callable[..., FitConfig]:
    """Builder of a config for a fit of a few seconds."""

    def build(**options: Any) -> FitConfig:
        numbers: dict[str, Any] = dict(steps=60, batch=16, lr=3e-3, held_out=0.5, margin=0.2, network=SMALL)
        return FitConfig(**numbers | options)

    return build


Answer = str | tuple[int, bytes] | Callable[[Any], None]
"""Text of a message, status and body, or a function of the request's handler."""


class ModelServer:
    """Received requests and next answers; the last answer is repeated."""

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{port}/v1"
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: ModelServer = self.server.scripted  # type: ignore[attr-defined]
        server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path})
        server.headers.append(dict(self.headers))
        answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        if callable(answer):
            answer(self)
            return
        completion = {"choices": [{"message": {"role": "assistant", "content": answer}}]}
        status, body = answer if isinstance(answer, tuple) else (200, json.dumps(completion).encode())
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    http.scripted = ModelServer(http.server_port)  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield http.scripted  # type: ignore[attr-defined]
    http.shutdown()
    http.server_close()
    thread.join(5)


@pytest.fixture
def model_config(model_server: ModelServer, tmp_path: Path) -> ModelConfig:
    return ModelConfig(f"{model_server.url}#canned", tmp_path / "replies", timeout=5.0)
