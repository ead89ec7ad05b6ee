"""`robot-rl deploy` as a whole, against topics: what it reports of a policy that is broken."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.bundle import Bundle, save_bundle
from robot_rl.cli.deploy import Deploy
from robot_rl.interface import Pipeline
from sim.tasks import tasks

LIFT = replace(tasks.get("panda-lift").interface, horizon=8)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def deploy(topic_robot: Callable[..., Any], residual: Callable[..., Any], tmp_path: Path, capsys: Any) -> Any:
    def run(weight: float) -> tuple[int, dict[str, Any]]:
        topic_robot()
        pipeline = Pipeline(LIFT)
        policy = residual(pipeline.observer.spec.size, 4, zero_init=False)
        with torch.no_grad():
            for parameter in policy.actor.parameters():
                parameter.mul_(weight)
        save_bundle(Bundle(policy, LIFT, pipeline.robot.fingerprint()), tmp_path / "bundle")
        code = Deploy(tmp_path / "bundle", episodes=1, video_episodes=0, out=tmp_path / "run", json=True).run()
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
