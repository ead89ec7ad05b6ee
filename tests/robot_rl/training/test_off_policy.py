"""What the off-policy loop says about itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from robot_rl import success
from robot_rl.seeds import training_seed
from robot_rl.training.off_policy import OffPolicyConfig, demo_replay, train_off_policy
from robot_rl.training.run import read_metrics
from sim.env import TaskEnv

Build = Callable[..., Any]


def test_the_first_success_rate_is_that_of_the_first_episodes(
    task: Build, residual: Build, agent: Build, run: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cubes on the right succeed in 2 steps, the others fail in 12: two in eight would look like a hundred per cent."""
    monkeypatch.setitem(success.TESTS, "right", lambda: lambda s: s.objects["cube"][:, 1] > 0)
    env = TaskEnv(task(success="right", success_hold=2, horizon=12), 8, threads=1)
    right = env.reset(seed=training_seed(3))[0]["observation.environment_state"][:, 1] > 0
    size = env.pipeline.observer.spec.size
    learner = agent(residual(size, 4))
    demo = {"state": torch.randn(12, size), "action": torch.zeros(12, 4), "reward": torch.zeros(12)}
    demos = demo_replay(learner.policy, [demo], torch.Generator().manual_seed(1))
    config = OffPolicyConfig(
        steps=8 * 15, num_envs=8, batch=8, warmup=200, learning_starts=200, capacity=200, log_every=8
    )  # fmt: skip
    with run() as folder:
        train_off_policy(env, learner, demos, config, folder, 3, lambda step, row: None)
    rows = {int(row["step"]): row.get("train/success") for row in read_metrics(folder.folder)}
    assert 0 < right.sum() < 8 and env.seed == training_seed(3)
    assert all(rows[8 * k] is None for k in range(1, 12)), "early successes only"
    assert rows[8 * 12] == pytest.approx(float(right.float().mean()))
