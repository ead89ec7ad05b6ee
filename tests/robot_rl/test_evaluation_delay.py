"""Evaluation in simulation with delayed inference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Chunk, Observation, Prefix
from policies.execution import Execution
from robot_rl.cli.evaluate import Evaluate
from robot_rl.evaluation import evaluate
from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv


class Sideways:
    """A policy that moves to the left with a closed gripper; no torch module."""

    horizon, execute = 8, 4

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        action = torch.tensor([0.0, 0.02, 0.0, -1.0])
        return Chunk(action.expand(len(observation["observation.state"]), self.horizon, -1))

    def reset(self, ids: Tensor | None = None) -> None:
        pass


@pytest.mark.parametrize(
    ("mode", "held", "moved"),
    [
        ("receding", 14 * 3 + 2, 14 * 4),  # 14 rounds of 3 held periods and 4 actions, then 2 held periods
        ("asynchronous", 3, 97),
    ],
)
def test_robot_holds_while_inference_is_not_done(mode: Any, held: int, moved: int) -> None:
    env = TaskEnv("panda-lift", 2, threads=1)
    step, actions = env.step, []

    def watch(action: Tensor) -> Any:
        actions.append(action.clone())
        return step(action)

    env.step = watch  # type: ignore[assignment,method-assign]
    result = evaluate(Sideways(), env, 2, execution=Execution(mode, delay=3))
    env.close()
    assert result.steps == [100, 100] and result.held == 2 * held
    assert result.summary()["held_share"] == held / 100
    executed = torch.stack(actions)
    still = (executed[..., :3] == 0).all(-1)
    assert still.sum(0).tolist() == [held, held] and (~still).sum(0).tolist() == [moved, moved]
    assert (executed[:3, :, 3] == 1).all(), "the gripper is open at the start"
    assert (executed[3:, :, 3] == -1).all(), "holding keeps the gripper closed"


def test_delay_is_rounded_up_and_recorded(tmp_path: Path) -> None:
    Evaluate((Path("zero:panda-lift"),), 2, num_envs=2, inference_delay=51, out=tmp_path / "e.json", json=True).run()
    summary = json.loads((tmp_path / "e.json").read_text())
    assert summary["inference_delay"] == 51 and summary["execution"] == "receding"
    assert summary["held_share"] == pytest.approx(2 / 3, abs=0.01), "two held periods per action"


def test_unsupported_delay_raises() -> None:
    with pytest.raises(ConfigError, match="gym:Pendulum-v1 has no control rate; leave out --inference-delay"):
        Evaluate((Path("random:gym:Pendulum-v1"),), 1, num_envs=1, inference_delay=50).run()
    with pytest.raises(ConfigError, match="takes 1 control periods and a chunk holds 1"):
        Evaluate((Path("zero:panda-lift"),), 1, num_envs=1, inference_delay=50, execution="asynchronous").run()
