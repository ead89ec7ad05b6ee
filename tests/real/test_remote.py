"""A policy on a server drives a robot; when the server goes, hangs or talks nonsense, the robot holds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
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
from real.control import clock
from robot_rl.cli.deploy import Deploy
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

pytestmark = pytest.mark.usefixtures("stopping")
LIFT = tasks.get("panda-lift").interface
PIPELINE = Pipeline(LIFT)
Serve = Callable[..., tuple[str, subprocess.Popen[str]]]
Build = Callable[..., Any]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "bare_loop", partial(clock.bare_loop, seconds=0.5))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = DiffusionConfig(horizon=8, execute=4, hidden=32, layers=1, train_steps=10, sample_steps=2)
    policy = DiffusionPolicy(Size(PIPELINE.observer.spec.size, PIPELINE.actions.size), config)
    save_bundle(Bundle(policy, LIFT, PIPELINE.robot.fingerprint()), tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def twin(private_domain: int) -> Iterator[None]:
    command = [sys.executable, "-m", "robot_rl.cli.main", "twin", "panda", "--task", LIFT.task]
    process = subprocess.Popen([*command, "--no-camera"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "twin of panda is up" in first, first + process.stderr.read()
    yield
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


class Until:
    """Do something once, a number of control periods into an episode of a run, and say so."""

    def __init__(self, env: Any, steps: int, act: Callable[[], Any]):
        self.done = False
        reset = env.reset

        def begun(**words: Any) -> Any:
            first = reset(**words)
            env.observers.append(self._step)
            return first

        self.steps, self.act, env.reset = steps, act, begun

    def _step(self, step: dict[str, Any]) -> None:
        if not self.done and int(step["episode_steps"]) >= self.steps:
            self.done = True
            self.act()


@pytest.fixture
def when(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], Any]], None]:
    """Do something at a control period of the first episode that is deployed."""
    from real.episode.env import RobotEnv

    made = RobotEnv.__init__

    def at(steps: int, act: Callable[[], Any]) -> None:
        def watched(self: RobotEnv, *arguments: Any, **words: Any) -> None:
            made(self, *arguments, **words)
            Until(self, steps, act)

        monkeypatch.setattr(RobotEnv, "__init__", watched)

    return at


def deploy(what: Any, run: Path, capsys: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    code = Deploy(Path(what), **{"episodes": 2, "video_episodes": 0, "out": run, "json": True, **options}).run()
    return code, json.loads(capsys.readouterr().out)


def assert_it_held(commands: list[np.ndarray]) -> None:
    """It braked within the robot's limits, and then stood still."""
    assert len(commands) > 100 and np.ptp(commands[50:], axis=0).max() > 0.01, "it had moved"
    jumps = np.abs(np.diff(np.array(commands), axis=0)).max(0)
    assert (jumps <= PIPELINE.shield.velocity[0].numpy() * PIPELINE.tick + 1e-6).all()
    assert np.ptp(commands[-3:], axis=0).max() < 1e-6, "it stands when the commands end"


@pytest.mark.parametrize("execution", ["receding", "realtime"])
def test_a_served_policy_drives_the_twin(
    twin: None, serve: Serve, bundle: Path, tmp_path: Path, capsys: Any, execution: str
) -> None:
    address, _ = serve(bundle)
    code, result = deploy(address, tmp_path / "run", capsys, episodes=1, seconds=2.0, execution=execution)
    assert code == 0 and result["where"] == "twin" and result["stopped"] == "" and "ended" not in result
    assert result["server"]["address"] == address and result["server"]["failures"] == {}
    assert result["server"]["requests"] >= 4


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (signal.SIGKILL, "closed", "has closed the connection"),
        (signal.SIGSTOP, "timeout", "has not answered for 1.8 s"),
    ],
)
@pytest.mark.parametrize("execution", ["receding", "asynchronous"])
def test_a_server_that_is_killed_or_frozen_ends_the_run_and_the_robot_holds(
    topic_robot: Build, serve: Serve, bundle: Path, tmp_path: Path, capsys: Any, when: Any, execution: str,
    number: signal.Signals, kind: str, said: str,
) -> None:  # fmt: skip
    address, process = serve(bundle)
    robot = topic_robot()
    when(20, lambda: process.send_signal(number))
    code, result = deploy(address, tmp_path / "run", capsys, execution=execution)
    assert code == 1 and result["episodes"] == 0 and result["success"] is None
    assert said in result["ended"] and address in result["ended"]
    assert result["server"]["failures"] == {kind: 1} and result["server"]["requests"] > 3
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["ended"] == result["ended"] and kept["server"]["failures"] == {kind: 1}
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["what"] for e in events if e["event"] == "server"] == [result["ended"]]
    assert json.loads((tmp_path / "run" / "loop.json").read_text())["ticks"] > 0
    assert_it_held(robot.commands)


def test_a_server_killed_in_mid_episode_leaves_the_twin_at_rest(
    twin: None, serve: Serve, bundle: Path, tmp_path: Path, capsys: Any, when: Any, eventually: Build
) -> None:
    from real.bus import open_node, qos

    address, process = serve(bundle)
    with open_node("witness") as node:
        speeds: list[float] = []
        node.subscribe(
            "sensor_msgs/msg/JointState", PIPELINE.robot.ros.joint_states, qos.SENSOR,
            lambda sample: speeds.append(float(np.abs(sample.msg.velocity[:7]).max())),
        )  # fmt: skip
        when(20, process.kill)
        code, result = deploy(address, tmp_path / "run", capsys)
        assert code == 1 and "has closed the connection" in result["ended"] and result["where"] == "twin"
        assert max(speeds) > 0.1, "it had moved"
        speeds.clear()
        eventually(lambda: len(speeds) > 200)
        assert max(speeds[-100:]) < 0.02, "it is at rest"


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"actions": np.full((6, 4), np.nan)}, "nonfinite"),
        ({"actions": np.zeros((6, 7))}, "shape"),
        (b"\xc1", "nonsense"),
        ("Traceback\nRuntimeError: out of memory", "error"),
    ],
)
def test_a_foreign_server_that_begins_to_talk_nonsense_ends_the_run_and_the_robot_holds(
    topic_robot: Build, foreign: Build, tmp_path: Path, capsys: Any, wrong: Any, kind: str
) -> None:
    robot, left = topic_robot(), PIPELINE.actions.high.numpy() * np.array([0, 0.5, 0, 1])

    def talk(connection: ServerConnection) -> None:
        connection.send(pack({}))
        for count, _ in enumerate(connection):
            if count == 5 and isinstance(wrong, bytes | str):
                connection.send(wrong)
            else:
                connection.send(pack(wrong if count == 5 else {"actions": np.tile(left, (6, 1))}))

    code, result = deploy(foreign(talk), tmp_path / "run", capsys, task="panda-lift")
    assert code == 1 and result["server"]["failures"] == {kind: 1} and result["server"]["requests"] >= 5
    assert_it_held(robot.commands)


def test_without_a_server_nothing_is_sent_to_the_robot(
    topic_robot: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from robot_rl.cli.main import main

    robot = topic_robot()
    assert main(["deploy", "ws://127.0.0.1:9", "--video-episodes", "0", "--out", str(tmp_path / "run")]) == 1
    assert "cannot be reached" in capsys.readouterr().err and not robot.commands
    assert not (tmp_path / "run").exists()
