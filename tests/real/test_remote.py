"""A remote policy drives a robot; if its server dies, hangs or sends invalid answers, the robot holds."""

import json
import signal
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
from policies.remote.packing import pack
from real.episode.env import RobotEnv
from robot_rl.cli.deploy import Deploy
from robot_rl.cli.main import main
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

pytestmark = pytest.mark.usefixtures("stopping", "short_bare_loop")
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
Serve = Callable[..., tuple[str, subprocess.Popen[str]]]
Build = Callable[..., Any]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = DiffusionConfig(horizon=8, execute=4, hidden=32, layers=1, train_steps=10, sample_steps=2)
    policy = DiffusionPolicy(Size(PIPELINE.observer.spec.size, PIPELINE.actions.size), config)
    save_bundle(Bundle(policy, LIFT, PIPELINE.robot.fingerprint()), tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def when(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], Any]], None]:
    """Call `act` after a number of control periods of the first deployed episode."""
    step = RobotEnv.step

    def at(steps: int, act: Callable[[], Any]) -> None:
        def watched(self: RobotEnv, actions: Any) -> Any:
            result = step(self, actions)
            if (self.episode, self.steps) == (0, steps):
                act()
            return result

        monkeypatch.setattr(RobotEnv, "step", watched)

    return at


def deploy(what: Any, run: Path, capsys: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    code = Deploy(Path(what), **{"episodes": 2, "video_episodes": 0, "out": run, "json": True, **options}).run()
    return code, json.loads(capsys.readouterr().out)


def assert_braked_and_held(commands: list[np.ndarray]) -> None:
    """Check that the robot moved, braked within its limits, and then stood still."""
    assert len(commands) > 100 and np.ptp(commands[50:], axis=0).max() > 0.01
    jumps = np.abs(np.diff(np.array(commands), axis=0)).max(0)
    assert (jumps <= PIPELINE.shield.velocity[0].numpy() * PIPELINE.tick + 1e-6).all()
    assert np.ptp(commands[-3:], axis=0).max() < 1e-6


def test_served_policy_drives_the_twin(twin: Build, serve: Serve, bundle: Path, tmp_path: Path, capsys: Any) -> None:
    twin(LIFT.task, "--no-camera")
    address, _ = serve(bundle)
    code, result = deploy(address, tmp_path / "run", capsys, episodes=1, seconds=2.0, execution="realtime")
    assert code == 0 and result["where"] == "twin" and result["stopped"] == "" and "ended" not in result
    assert result["server"]["address"] == address and result["server"]["failures"] == {}
    assert result["server"]["requests"] >= 4


@pytest.mark.parametrize(
    ("execution", "number", "kind", "reason"),
    [
        ("asynchronous", signal.SIGKILL, "closed", "has closed the connection"),
        ("receding", signal.SIGSTOP, "timeout", "has not answered for 1.8 s"),
    ],
)
def test_killed_or_frozen_server_ends_the_run_and_the_robot_holds(
    robot: Any, serve: Serve, bundle: Path, tmp_path: Path, capsys: Any, when: Any, execution: str,
    number: signal.Signals, kind: str, reason: str,
) -> None:  # fmt: skip
    address, process = serve(bundle)
    when(20, lambda: process.send_signal(number))
    code, result = deploy(address, tmp_path / "run", capsys, execution=execution)
    assert code == 1 and result["episodes"] == 0 and result["success"] is None
    assert reason in result["ended"] and address in result["ended"]
    assert result["server"]["failures"] == {kind: 1} and result["server"]["requests"] > 3
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["ended"] == result["ended"] and kept["server"]["failures"] == {kind: 1}
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["what"] for e in events if e["event"] == "server"] == [result["ended"]]
    assert json.loads((tmp_path / "run" / "loop.json").read_text())["ticks"] > 0
    assert_braked_and_held(robot.commands)


@pytest.mark.parametrize(
    ("wrong", "kind"), [({"actions": np.full((6, 4), np.nan)}, "nonfinite"), (b"\xc1", "nonsense")]
)
def test_invalid_answer_of_a_foreign_server_ends_the_run_and_the_robot_holds(
    robot: Any, foreign: Build, tmp_path: Path, capsys: Any, wrong: Any, kind: str
) -> None:
    left = PIPELINE.actions.high.numpy() * np.array([0, 0.5, 0, 1])

    def talk(connection: ServerConnection) -> None:
        connection.send(pack({}))
        for count, _ in enumerate(connection):
            answer = wrong if count == 5 else {"actions": np.tile(left, (6, 1))}
            connection.send(answer if isinstance(answer, bytes) else pack(answer))

    code, result = deploy(foreign(talk), tmp_path / "run", capsys, task="panda-lift")
    assert code == 1 and result["server"]["failures"] == {kind: 1} and result["server"]["requests"] >= 5
    assert_braked_and_held(robot.commands)


def test_unreachable_server_starts_nothing(robot: Any, tmp_path: Path, capsys: Any) -> None:
    assert main(["deploy", "ws://127.0.0.1:9", "--video-episodes", "0", "--out", str(tmp_path / "run")]) == 1
    assert "cannot be reached" in capsys.readouterr().err and not robot.commands
    assert not (tmp_path / "run").exists()
