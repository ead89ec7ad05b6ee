"""`robot-rl deploy` as a whole, against topics: what it reports of a policy that is broken."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.bundle import Bundle, save_bundle
from real.control import clock
from real.episode.env import RobotEnv
from real.episode.intervention import Arbiter
from real.teleop.commands import RELEASED, Operator
from robot_rl.cli.deploy import Deploy
from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import Interrupted
from sim.tasks import tasks

pytestmark = pytest.mark.usefixtures("stopping")
LIFT = replace(tasks.get("panda-lift").interface, horizon=8)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare loop beside the policy's for half a second, not for two; in processes it keeps its time."""
    monkeypatch.setattr(clock, "bare_loop", partial(clock.bare_loop, seconds=0.5))


@pytest.fixture
def bundle(residual: Callable[..., Any], tmp_path: Path) -> Callable[[float], None]:
    """Save a policy whose actor's weights are random ones times a number."""

    def save(weight: float) -> None:
        pipeline = Pipeline(LIFT)
        policy = residual(pipeline.observer.spec.size, 4, zero_init=False)
        with torch.no_grad():
            for parameter in policy.actor.parameters():
                parameter.mul_(weight)
        save_bundle(Bundle(policy, LIFT, pipeline.robot.fingerprint()), tmp_path / "bundle")

    return save


@pytest.fixture
def deploy(topic_robot: Callable[..., Any], bundle: Callable[[float], None], tmp_path: Path, capsys: Any) -> Any:
    def run(weight: float, episodes: int = 1) -> tuple[int, dict[str, Any]]:
        topic_robot()
        bundle(weight)
        code = Deploy(tmp_path / "bundle", episodes=episodes, video_episodes=0, out=tmp_path / "run", json=True).run()
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_policy_whose_actions_are_no_numbers_is_reported_and_fails(deploy: Any, tmp_path: Path) -> None:
    code, result = deploy(1e38)  # finite weights, infinite sums
    assert code == 1 and result["stopped"] == "3 non-finite goals in a row" and result["nonfinite"] == 8
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["stopped"] == result["stopped"] and kept["nonfinite"] == 8 and kept["success"] == 0


def test_a_policy_that_only_fails_the_task_is_an_ordinary_result(deploy: Any) -> None:
    code, result = deploy(1.0)
    assert code == 0 and result["stopped"] == "" and result["nonfinite"] == 0 and result["success"] == 0


def test_the_settings_on_record_are_values_not_words(deploy: Any, tmp_path: Path) -> None:
    deploy(1.0)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["episodes"], config["dry_run"], config["seconds"]) == (1, False, 0.0)
    assert config["bundle"] == str(tmp_path / "bundle") and config["robot"] == "panda"


@pytest.fixture
def command(bundle: Callable[[float], None], tmp_path: Path) -> Callable[..., Any]:
    """`robot-rl deploy` as a process of its own, without a teleop device."""

    def run(weight: float) -> tuple[int, str]:
        bundle(weight)
        options = ("--episodes", "3", "--video-episodes", "0", "--out", str(tmp_path / "run"), "--json")
        done = subprocess.run(
            [sys.executable, "-m", "robot_rl.cli.main", "deploy", str(tmp_path / "bundle"), *options],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_latched_stop_that_nobody_can_reset_ends_it_with_its_results(
    topic_robot: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    topic_robot()
    code, said = command(1e38)
    assert code == 1, said
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["episodes"] == 1 and kept["success"] == 0 and kept["stopped"] == "3 non-finite goals in a row"
    assert "no teleop device is there to reset it" in kept["ended"] and kept["ended"] in said
    assert json.loads((tmp_path / "run" / "loop.json").read_text())["ticks"] > 0


@pytest.mark.parametrize("finished", [0, 2])
def test_an_interrupt_keeps_the_results_of_the_episodes_that_had_ended(
    deploy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: int
) -> None:
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


def test_an_interrupt_right_after_an_episode_leaves_no_row_without_its_result(
    deploy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, ended = RobotEnv.step, 0

    def interrupted(self: RobotEnv, action: torch.Tensor) -> Any:
        nonlocal ended
        happened = step(self, action)
        ended += bool(happened[2] | happened[3])
        if ended == 2:
            raise KeyboardInterrupt(signal.SIGINT)
        return happened

    monkeypatch.setattr(RobotEnv, "step", interrupted)
    with pytest.raises(Interrupted):
        deploy(1.0, episodes=3)
    rows = (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["episodes"] == len(rows) == 1 and json.loads(rows[0])["index"] == 0


def test_without_a_twin_and_a_person_it_says_that_nobody_places_the_object(
    topic_robot: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    topic_robot(places_objects=False)
    code, said = command(1.0)
    assert code == 1 and "no operator or twin to place the object" in said
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_episodes_that_a_person_corrected_or_marked_are_not_the_policys(
    deploy: Any, tmp_path: Path, hands: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three episodes: two of the policy's own around one that a person takes over and marks as a success."""
    held = Operator(held=True)
    script = [RELEASED] * 8 + [RELEASED, held, RELEASED, held, Operator(success=True)] + [RELEASED] * 8
    operator = hands(*script)
    monkeypatch.setattr("real.teleop.commands.OperatorInput", lambda *_: operator)
    decide, operator.speaks = Arbiter.decide, False

    def only_in_decisions(self: Arbiter, *arguments: Any) -> Any:
        operator.speaks = True
        try:
            return decide(self, *arguments)
        finally:
            operator.speaks = False

    monkeypatch.setattr(Arbiter, "decide", only_in_decisions)
    code, result = deploy(1.0, episodes=3)
    assert code == 0 and result["episodes"] == 2 and result["success"] == 0 and result["corrected_episodes"] == 1
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["takeovers"] == [0, 2, 0]
