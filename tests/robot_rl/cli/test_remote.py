"""`evaluate ws://HOST:PORT`: the same results as with the bundle; foreign servers follow a task's contract."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from websockets.sync.server import ServerConnection

from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.errors import RemoteFailure, WrongBundle
from policies.remote.packing import pack, unpack
from policies.residual import ResidualPolicy
from robot_rl.cli.deploy import Deploy
from robot_rl.cli.evaluate import Evaluate
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import ConfigError
from sim.tasks import tasks

Serve = Callable[..., tuple[str, subprocess.Popen[str]]]
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
SHORT = dict(horizon=8, execute=4, hidden=16, layers=1, train_steps=10, sample_steps=2)
COMPARED = ("success", "steps", "action_change", "nonfinite", "episodes", "per_episode", "task", "divergences")


def diffusion(observation: int, action: int) -> DiffusionPolicy:
    torch.manual_seed(0)
    return DiffusionPolicy(Size(observation, action), DiffusionConfig(**SHORT))  # type: ignore[arg-type]


def measured(what: Any, folder: Path, **options: Any) -> dict[str, Any]:
    out = folder / "e.json"
    Evaluate((Path(what),), **{"episodes": 2, "num_envs": 2, "threads": 1, "out": out, "json": True, **options}).run()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def lifting(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A bundle for a robot's task, and the address of its server."""
    folder = tmp_path_factory.mktemp("lifting") / "bundle"
    policy = diffusion(PIPELINE.observer.spec.size, PIPELINE.actions.size)
    save_bundle(Bundle(policy, LIFT, PIPELINE.robot.fingerprint()), folder)
    return folder, serve(folder, "--threads", "1")[0]


@pytest.mark.parametrize("options", [{}, {"execution": "realtime", "inference_delay": 100}])
def test_served_policy_gives_the_results_of_its_bundle(lifting: tuple[Path, str], tmp_path: Path, options: Any) -> None:
    local, remote = (measured(what, tmp_path, **options) for what in lifting)
    for name in COMPARED:
        assert remote[name] == local[name], name
    assert local["action_change"] > 0.01
    server = remote["server"]
    assert server["address"] == lifting[1] and server["requests"] > 20 and server["failures"] == {}


def test_served_policy_with_a_state_for_a_testbed_gives_the_same_results(serve: Serve, tmp_path: Path) -> None:
    policy = ResidualPolicy(diffusion(10, 2))
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    save_bundle(Bundle(policy, None, {}, task="testbed:push"), tmp_path / "bundle")
    address, _ = serve(tmp_path / "bundle", "--threads", "1")
    local, remote = (measured(what, tmp_path, episodes=7, num_envs=3) for what in (tmp_path / "bundle", address))
    for name in COMPARED:
        assert remote[name] == local[name], name
    with pytest.raises(WrongBundle, match=f"the policy at {address} is for testbed:push, which no robot runs"):
        Deploy(Path(address), video_episodes=0).run()


def test_served_policy_is_refused_for_another_robot_or_task(lifting: tuple[Path, str], tmp_path: Path) -> None:
    bundle, address = lifting
    with pytest.raises(WrongBundle, match=f"the policy at {address} is for robot 'panda', not for 'ur5e'"):
        Deploy(Path(address), robot="ur5e", video_episodes=0).run()
    with pytest.raises(ConfigError, match="is for task 'panda-lift', not for 'panda-turn'"):
        measured(address, tmp_path, task="panda-turn")
    with pytest.raises(ConfigError, match="leave out --keys and --execute"):
        measured(address, tmp_path, execute=4)
    with pytest.raises(ConfigError, match="the server chooses its runtime"):
        measured(address, tmp_path, runtime="onnx")
    with pytest.raises(ConfigError, match="--task is for a server"):
        measured(bundle, tmp_path, task="panda-lift")


def test_killed_server_ends_the_evaluation(lifting: Any, serve: Serve, tmp_path: Path, monkeypatch: Any) -> None:
    from robot_rl import evaluation

    address, process = serve(lifting[0])
    step, steps = evaluation.ChunkExecutor.act, 0

    def act(self: Any, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 30:
            process.kill()
            process.wait()
        return step(self, *arguments)

    monkeypatch.setattr(evaluation.ChunkExecutor, "act", act)
    with pytest.raises(RemoteFailure, match=f"the policy server at {address} has closed the connection"):
        measured(address, tmp_path)
    assert 30 <= steps < 40 and not (tmp_path / "e.json").exists()


@pytest.fixture
def rising(foreign: Callable[..., str]) -> tuple[str, list[dict[str, Any]]]:
    """A foreign server that moves the arm up in chunks of 5 actions, and the list of its received messages."""
    got: list[dict[str, Any]] = []
    up = PIPELINE.actions.high.numpy() * np.array([0, 0, 1, 1])

    def talk(connection: ServerConnection) -> None:
        connection.send(pack({"name": "another"}))
        for message in connection:
            assert isinstance(message, bytes)
            got.append(unpack(message))
            connection.send(pack({"actions": np.tile(up, (5, 1)), "server_timing": {"infer_ms": 0.1}}))

    return foreign(talk), got


def test_foreign_server_follows_the_contract_of_a_task(rising: Any, tmp_path: Path) -> None:
    address, got = rising
    keys = ("observation.state=observation/state",)
    found = measured(address, tmp_path, episodes=2, num_envs=2, task="panda-lift", keys=keys, execute=4)
    assert found["steps"] == 100 and found["server"]["requests"] == len(got) == 1 + 2 * 25
    assert all(set(message) == {"observation/state"} for message in got)
    heights = [message["observation/state"] for message in got]
    assert heights[1].shape == (PIPELINE.observer.spec.size,) and not np.array_equal(heights[1], heights[-1])
    for task in (None, "testbed:push"):
        with pytest.raises(ConfigError, match="does not say what its policy is for: name a robot's --task"):
            measured(address, tmp_path, task=task)
    with pytest.raises(ConfigError, match="did you mean observation.state"):
        measured(address, tmp_path, task="panda-lift", keys=("observation.stat=x",))
    with pytest.raises(ConfigError, match="realtime execution needs a policy that samples chunks"):
        measured(address, tmp_path, task="panda-lift", execution="realtime")


def test_unreachable_server_gives_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    from robot_rl.cli.main import main

    assert main(["evaluate", "ws://127.0.0.1:9", "--episodes", "1"]) == 1
    said = capsys.readouterr().err
    assert "the policy server at ws://127.0.0.1:9 cannot be reached" in said and said.count("\n") == 1
