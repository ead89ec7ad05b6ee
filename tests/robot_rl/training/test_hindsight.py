"""Hindsight goals of the off-policy loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.interface.spec import VectorSpec, box
from robot_rl.rewards import SuccessReward
from robot_rl.training.goals import GoalConfig, Goals, achieved_later
from robot_rl.training.off_policy import OffPolicyConfig, hindsight_goals, train_off_policy
from robot_rl.util.errors import ConfigError, UnknownName
from sim.testbeds.base import TestbedEnv as Env
from sim.testbeds.reach import Reach

Build = Callable[..., Any]
SPEC = VectorSpec(tuple(box(name, "x y", "m", -9, 9) for name in ("tip", "target", "between")))
GOALS = Goals(GoalConfig("tip", "target", "between", 0.1), SPEC)


class Unreachable(Reach):
    """Reach whose goal is never achieved."""

    horizon = 20

    def outcome(self, s: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        reward, success, failure = super().outcome(s, a)
        return torch.zeros_like(reward), torch.zeros_like(success), failure


def actor(env: Env) -> GaussianPolicy:
    """Return a tiny policy for an environment."""
    torch.manual_seed(0)
    return GaussianPolicy(Size(env.info.observation, env.info.action), GaussianConfig(hidden=(16,)))


def episode(path: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return an episode whose tip takes a path (T + 1, 2) and never reaches its target."""
    target = torch.full_like(path, 8.0)
    steps = len(path) - 1
    state = torch.cat([path, target, target - path], 1)
    begins = torch.ones(steps, dtype=torch.bool)
    return {STATE: state, "action": torch.arange(steps * 2.0).view(steps, 2), "reward": torch.zeros(steps),
            "terminated": ~begins, "decides": begins}  # fmt: skip


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=12), st.integers(0, 99))
def test_copy_ends_where_its_goal_is_first_achieved(xs: list[int], seed: int) -> None:
    path = torch.tensor([[x, 0.0] for x in xs])
    original = episode(path)
    copy = achieved_later(original, GOALS, torch.Generator().manual_seed(seed))
    if copy is None:
        assert xs[0] in xs[1:]
        return
    steps, goal = len(copy["action"]), copy[STATE][0, 2:4]
    assert 0 < steps < len(xs) and len(copy[STATE]) == steps + 1
    assert torch.equal(copy[STATE][:, :2], path[: steps + 1])
    assert torch.equal(copy["action"], original["action"][:steps])
    assert (copy[STATE][:, 2:4] == goal).all(), "one goal, so that n-step returns stay consistent"
    assert torch.equal(copy[STATE][:, 4:], goal - path[: steps + 1])
    assert torch.equal(path[steps], goal) and not (path[:steps] == goal).all(1).any()
    assert copy["reward"].tolist() == [0.0] * (steps - 1) + [1.0] and copy["terminated"].tolist()[-1]
    assert not original["reward"].any() and (original[STATE][:, 2:4] == 8).all(), "the episode stays as it was"


def test_every_later_state_becomes_a_goal() -> None:
    walk, rng = episode(torch.arange(5.0)[:, None].expand(5, 2)), torch.Generator().manual_seed(0)
    ends = [len(copy["action"]) for _ in range(400) if (copy := achieved_later(walk, GOALS, rng))]
    counts = torch.bincount(torch.tensor(ends), minlength=5)
    assert counts[0] == 0 and (counts[1:] > 60).all()


def test_learner_sees_rewards_in_an_environment_without_success(agent: Build, run: Build) -> None:
    """Four fifths of a batch are copies; without copies no reward is ever seen."""
    seen: dict[int, list[torch.Tensor]] = {0: [], 4: []}
    for copies, rewards in seen.items():
        env = Env(Unreachable(), 4)
        learner = agent(actor(env))
        update = learner.update

        def watch(batch: Any, phase: Any, kept: Any = rewards, update: Any = update) -> Any:
            kept.append(batch["reward"])
            return update(batch, phase)

        learner.update = watch
        config = OffPolicyConfig(600, num_envs=4, batch=50, updates_per_step=0.1, warmup=0, learning_starts=0,
                                 hindsight=copies)  # fmt: skip
        with run(str(copies)) as folder:
            train_off_policy(env, learner, None, SuccessReward(), config, folder, 0, lambda *_: None)
    assert not torch.cat(seen[0]).any()
    assert 0.1 < (torch.cat(seen[4][20:]) > 0).float().mean() < 0.8


def test_resumed_run_continues_as_if_not_interrupted(agent: Build, run: Build, same: Build) -> None:
    def train(steps: int, folder: str, resume: bool = False) -> Any:
        env = Env(Reach(), 4)
        learner = agent(actor(env))
        config = OffPolicyConfig(steps, num_envs=4, batch=32, updates_per_step=0.1, warmup=0, learning_starts=0,
                                 checkpoint_every=200, hindsight=2)  # fmt: skip
        with run(folder, resume=resume) as opened:
            train_off_policy(env, learner, None, SuccessReward(), config, opened, 0, lambda *_: None)
        return learner.state_dict()

    whole = train(800, "whole")
    train(400, "parts")
    assert same(train(800, "parts", resume=True), whole)


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [({"reward": "task"}, (STATE,), "reward success"), ({}, (STATE, PRIVILEGED), "environment_state"),
     ({"goal": GoalConfig("hand")}, (STATE,), "goal.achieved")],
)  # fmt: skip
def test_refusals(change: dict[str, Any], columns: tuple[str, ...], message: str) -> None:
    config = OffPolicyConfig(**({"hindsight": 4} | change))
    with pytest.raises((ConfigError, UnknownName), match=message):
        hindsight_goals(Env(Reach(), 1), config, columns)
    assert hindsight_goals(Env(Reach(), 1), OffPolicyConfig(), columns) is None
