"""Successful online episodes are added to the demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Size
from policies.coarse_to_fine import CoarseToFinePolicy
from policies.networks.bins import BinsConfig
from robot_rl.learning.algorithms.cqn import CQN, CQNConfig
from robot_rl.rewards import SuccessReward
from robot_rl.training.off_policy import ONE_ENV, demo_replay, train_off_policy
from robot_rl.util.errors import ConfigError
from sim.testbeds.base import TestbedEnv as Env
from sim.testbeds.fork import Fork

Build = Callable[..., Any]
CONFIG = replace(
    ONE_ENV, steps=400, num_envs=4, batch=8, updates_per_step=0.05, warmup=0, learning_starts=40, log_every=80,
    keep_successes=True, checkpoint_every=80, capacity=800,
)  # fmt: skip


def scripted(seen: dict[str, Tensor], *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Environments 0 and 2 hit the obstacle, 1 and 3 go around it."""
    aside = (seen["observation.state"][:, 0] < 0.5) & torch.tensor([False, True, False, True])
    return torch.stack([aside.float(), (~aside).float()], 1), {}


def train(folder: Any, progress: Callable[..., None] = lambda step, row: None) -> tuple[CQN, Any]:
    torch.manual_seed(0)
    learner = CQN(CoarseToFinePolicy(Size(2, 2), BinsConfig(2, 3, hidden=(8,))), CQNConfig())
    demo = {"observation.state": torch.zeros(5, 2), "action": torch.zeros(5, 2), "reward": torch.eye(5)[4]}
    demos = demo_replay(learner, [demo], torch.Generator(), CONFIG.capacity)
    learner.act = scripted  # type: ignore[method-assign, assignment]
    train_off_policy(Env(Fork(), 4), learner, demos, SuccessReward(), CONFIG, folder, 3, progress)
    return learner, demos


def killed(step: int, row: Any) -> None:
    if step > 240:
        raise RuntimeError("killed")


def test_successes_are_added_also_in_a_resumed_run(run: Build, same: Callable[[Any, Any], bool]) -> None:
    with run("whole") as folder:
        learner, demos = train(folder)
    stored = demos.size
    assert stored > 5 + 4 * 25, "two environments succeeded at least twice in 25 steps or more"
    ends = demos.flags["last"][0].nonzero().flatten()
    assert torch.equal(demos.columns["reward"][0].nonzero().flatten(), ends), "every episode ends with success"
    assert int(demos.columns["demonstration"].sum()) == stored
    assert (demos.columns["observation.state"][0, ends[1:] + 1, 1] > 0.9).all(), "final observations are stored"
    with pytest.raises(RuntimeError, match="killed"), run("broken") as folder:
        train(folder, killed)
    with run("broken", resume=True) as folder:
        again, others = train(folder)
    assert same(again.state_dict(), learner.state_dict()) and same(others.state_dict(), demos.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"), [({}, "no-keep-successes"), ({"steps": 0, "offline_updates": 0}, "nothing would")]
)
def test_config_without_effect_raises(run: Build, changes: dict[str, int], message: str) -> None:
    env, learner = Env(Fork(), 4), CQN(CoarseToFinePolicy(Size(2, 2)), CQNConfig())
    with run() as folder, pytest.raises(ConfigError, match=message):
        config = replace(CONFIG, **changes)
        train_off_policy(env, learner, None, SuccessReward(), config, folder, 0, lambda step, row: None)
