"""`robot-rl deploy` on a robot's topics: results of broken policies, interrupts and corrections."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policies.bundle import Bundle, save_bundle
from real.bus import qos
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.episode.intervention import Arbiter
from real.sessions.deployment import Deployment
from real.teleop.commands import RELEASED, Operator
from real.topics import DIAGNOSTICS, DIAGNOSTICS_TOPIC
from robot_rl.cli.deploy import Deploy
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import Interrupted
from sim.tasks import tasks

pytestmark = pytest.mark.usefixtures("stopping", "short_bare_loop")
LIFT = replace(tasks.get("panda-lift").interface, horizon=8)


@pytest.fixture
def deploy(topic_robot: Callable[..., Any], residual: Callable[..., Any], tmp_path: Path, capsys: Any) -> Any:
    """Deploy a policy whose random weights are scaled by a factor."""

    def run(weight: float, episodes: int = 1, **options: Any) -> tuple[int, dict[str, Any]]:
        topic_robot(**options)
        pipeline = Pipeline(LIFT)
        policy = residual(pipeline.observer.spec.size, 4, zero_init=False)
        with torch.no_grad():
            for parameter in policy.actor.parameters():
                parameter.mul_(weight)
        save_bundle(Bundle(policy, LIFT, pipeline.robot.fingerprint()), tmp_path / "bundle")
        code = Deploy(tmp_path / "bundle", episodes=episodes, video_episodes=0, out=tmp_path / "run", json=True).run()
        return code, json.loads(capsys.readouterr().out)

    return run


def test_policy_with_nonfinite_actions_fails_with_its_results(deploy: Any, tmp_path: Path) -> None:
    """The latched stop, which nobody can reset, ends the run after the first of three episodes."""
    code, result = deploy(1e38, episodes=3)  # finite weights, infinite sums
    assert code == 1 and result["stopped"] == "3 non-finite goals in a row" and result["nonfinite"] == 8
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["stopped"] == result["stopped"] and kept["nonfinite"] == 8 and kept["success"] == 0
    assert kept["episodes"] == 1 and "no teleop device is there to reset it" in kept["ended"] == result["ended"]
    assert json.loads((tmp_path / "run" / "loop.json").read_text())["ticks"] > 0


def test_viewer_gets_the_robots_description_and_health(deploy: Any, nodes: Any, eventually: Any) -> None:
    viewer = nodes("viewer")
    described = viewer.subscribe("std_msgs/msg/String", "robot_description", qos.LATCHED)
    health = viewer.subscribe(DIAGNOSTICS, DIAGNOSTICS_TOPIC)
    deploy(1.0)
    eventually(lambda: described.latest and health.latest, "description and health")
    assert "joint7" in described.latest.msg.data
    assert "deploy: robot" in [status.name for status in health.latest.msg.status]


def test_failed_task_is_a_valid_result_and_the_settings_are_recorded(deploy: Any, tmp_path: Path) -> None:
    code, result = deploy(1.0)
    assert code == 0 and result["stopped"] == "" and result["nonfinite"] == 0 and result["success"] == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["episodes"], config["dry_run"], config["seconds"]) == (1, False, 0.0)
    assert config["bundle"] == str(tmp_path / "bundle") and config["robot"] == "panda"


@pytest.mark.parametrize("finished", [0, 2])
def test_interrupt_keeps_finished_episodes(deploy: Any, tmp_path: Path, monkeypatch: Any, finished: int) -> None:
    reset, begun = RobotEnv.reset, 0

    def interrupted(self: RobotEnv, **words: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun > finished:
            raise KeyboardInterrupt(signal.SIGTERM)
        return reset(self, **words)

    monkeypatch.setattr(RobotEnv, "reset", interrupted)
    with pytest.raises(Interrupted) as error:
        deploy(1.0, episodes=3)
    assert error.value.code == 128 + signal.SIGTERM
    evaluation = tmp_path / "run" / "evaluation.json"
    assert evaluation.exists() == bool(finished)
    if finished:
        kept = json.loads(evaluation.read_text())
        assert kept["episodes"] == finished and kept["ended"] == "interrupted"
        assert json.loads((tmp_path / "run" / "loop.json").read_text())["ticks"] > 0


def test_interrupt_after_an_episode_leaves_consistent_results(deploy: Any, tmp_path: Path, monkeypatch: Any) -> None:
    step, ended = RobotEnv.step, 0

    def interrupted(self: RobotEnv, action: torch.Tensor) -> Any:
        nonlocal ended
        result = step(self, action)
        ended += bool(result[2] | result[3])
        if ended == 2:
            raise KeyboardInterrupt(signal.SIGINT)
        return result

    monkeypatch.setattr(RobotEnv, "step", interrupted)
    with pytest.raises(Interrupted):
        deploy(1.0, episodes=3)
    rows = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["episodes"] == len(rows) == 1 and json.loads(rows[0])["index"] == 0


def test_without_a_twin_or_a_person_nothing_is_evaluated(deploy: Any, tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no operator or twin to place the object"):
        deploy(1.0, places_objects=False)
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_corrected_episodes_are_not_evaluated(deploy: Any, tmp_path: Path, hands: Any, monkeypatch: Any) -> None:
    """Three episodes; in the second, a person takes over and marks a success."""
    held = Operator(held=True)
    script = [RELEASED] * 8 + [RELEASED, held, RELEASED, held, Operator(success=True)] + [RELEASED] * 8
    operator = hands(*script)
    monkeypatch.setattr("real.sessions.deployment.OperatorInput", lambda *_: operator)
    create = Arbiter.__init__

    def scripted(self: Arbiter, *arguments: Any) -> None:
        create(self, *arguments)
        operator.only_in_decisions(self)

    monkeypatch.setattr(Arbiter, "__init__", scripted)
    code, result = deploy(1.0, episodes=3)
    assert code == 0 and result["episodes"] == 2 and result["success"] == 0 and result["corrected_episodes"] == 1
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["takeovers"] == [0, 2, 0]


@pytest.mark.parametrize(("stopped", "vanished", "failed"), [
    ("the guard has gone", "the guard has gone", True), ("stale state", "the robot sends no state", True),
    ("stale state", "", False), ("", "the guard has gone", False),
])  # fmt: skip
def test_run_whose_robot_or_guard_has_vanished_fails(stopped: str, vanished: str, failed: bool) -> None:
    """A twin resets the stop of a fallen robot by itself, but not one that has gone."""
    session: Any = object.__new__(Deployment)
    session.result, session.ended = SimpleNamespace(success=[]), ""
    session._evaluate = lambda *_: session.result.success.append(False)
    session.env = SimpleNamespace(
        loop=SimpleNamespace(stopped=stopped), vanished=lambda: vanished,
        reset_procedure=SimpleNamespace(auto_resets_stop=True),
    )  # fmt: skip
    session.run(1, 0, lambda *_: None)
    assert session.failed == failed and session.ended.startswith(vanished if failed else "")
