"""A range of actions: where the penalty acts, how the range grows, and that other dynamics shrink it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import load_bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.cli.main import main
from robot_rl.data.replay import NEXT
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.aprl import APRL, APRLConfig
from tests.robot_rl.learning.conftest import Batch, rng

LEARN, WARMUP = LearningPhase.LEARN, LearningPhase.WARMUP


def make(**config: Any) -> APRL:
    torch.manual_seed(0)
    policy = GaussianPolicy(Size(3, 2), GaussianConfig(hidden=(16,)))
    return APRL(policy, APRLConfig(hidden=(16,), n_step=1, range_steps=2400, **config))


def moved(state: torch.Tensor, action: torch.Tensor, gain: float, source: torch.Generator) -> torch.Tensor:
    """Return the states after one step; a third of each change is noise."""
    change = torch.cat([gain * action, action[:, :1] * action[:, 1:]], 1)
    return state + change + 0.1 * torch.randn(state.shape, generator=source)


def batch(rows: int = 64, seed: int = 0) -> Batch:
    source = rng(seed)
    state, action = torch.randn(rows, 3, generator=source), 2 * torch.rand(rows, 2, generator=source) - 1
    following = moved(state, action, 0.5, source)
    own = {"observation.state": state, NEXT + "observation.state": following, "action": action}
    return own | {"reward": torch.zeros(rows), "discount": torch.full((rows,), 0.9)}


def live(agent: APRL, gain: float, steps: int, seed: int = 0, falls: float = 0.0) -> None:
    """Act in eight environments whose dynamics have a gain; a share `falls` of the states is seen far away."""
    source, other, state = rng(seed), rng(seed + 1), torch.randn(8, 3, generator=rng(seed))
    agent.reset()
    for _ in range(steps):
        away = 20.0 * (torch.rand(8, 1, generator=other) < falls)
        action, _ = agent.act({"observation.state": state + away}, source, WARMUP)
        state = moved(state, action, gain, source)


def test_penalty_is_zero_inside_the_range_and_pushes_inwards_outside() -> None:
    agent, free = make(range_start=0.5, penalty=3.0), make(range_start=0.5, penalty=0.0)
    rows, seen = batch(4), torch.zeros(4, 3)
    u = torch.tensor([[0.4, -0.49], [0.0, 0.0], [0.2, -0.6], [-0.51, 0.1]], requires_grad=True)
    gap = free._actor_value(rows, seen, u) - agent._actor_value(rows, seen, u)
    assert gap[:2].tolist() == [0.0, 0.0] and gap[2:].detach() == pytest.approx(torch.tensor([2.4, 1.83]), abs=1e-5)
    (slope,) = torch.autograd.grad(gap.sum(), u)
    assert not slope[:2].any() and torch.equal(slope[2:], 3.0 * u[2:].detach().sign())


def test_actor_learns_to_stay_within_the_range() -> None:
    outside = {}
    for penalty in (0.0, 12.0):
        agent = make(range_start=0.3, range_end=0.3, penalty=penalty, entropy=True)
        for seed in range(300):
            agent.update(batch(seed=seed), LEARN)
        u, _ = agent.policy.actor.sample(agent.policy.actor_features(batch(512)), rng())
        outside[penalty] = (u.abs() > 0.3).any(-1).float().mean()
    assert outside[12.0] < 0.2 < 0.5 < outside[0.0]


def test_range_grows_with_known_dynamics_and_shrinks_with_others() -> None:
    agent = make(surprise=1.5)
    live(agent, 0.5, 100)
    assert agent.limit == 0.35, "no model yet"
    for seed in range(400):
        agent.update(batch(256, seed), WARMUP)
    live(agent, 0.5, 200, 1)
    grown = agent.limit
    assert grown == pytest.approx(0.35 + 0.25 * 1600 / 2400, abs=0.006)
    live(agent, 1.5, 20, 2)
    assert agent.limit < grown - 0.09, "two steps back, each of a fifth of the way"
    live(agent, 0.5, 100, 3)
    assert agent.limit > 0.35, "it grows again"


def test_single_falls_do_not_shrink_the_range() -> None:
    agent, calm = make(surprise=1.5), make(surprise=1.5)
    for seed in range(400):
        agent.update(batch(256, seed), WARMUP)
        calm.update(batch(256, seed), WARMUP)
    live(agent, 0.5, 100, falls=0.02)
    live(calm, 0.5, 100)
    assert agent.limit == calm.limit > 0.4
    live(agent, 0.5, 100, falls=0.5)
    assert agent.limit < calm.limit, "falls in every other step do"


def test_ends_of_episodes_are_no_surprise_and_warm_up_stays_within_the_range() -> None:
    agent = make(surprise=1.5)
    for seed in range(400):
        agent.update(batch(256, seed), WARMUP)
    source = rng()
    for step in range(150):
        state = 10.0 * torch.randn(8, 3, generator=source)
        action, _ = agent.act({"observation.state": state}, source, WARMUP)
        assert action.abs().max() <= agent.limit
        agent.reset(torch.arange(8) if step % 2 else torch.arange(4))
        agent.reset(torch.arange(4, 8))
    assert agent.limit == 0.35 and not agent.range.count.any()


def test_recipe_resumes_bit_for_bit(tmp_path: Path) -> None:
    few = ("train", "testbed:swing", "--recipe", "aprl", "--policy.hidden", "8", "--agent.hidden", "8",
           "--training.warmup", "40", "--training.learning-starts", "40", "--training.batch", "8",
           "--agent.range-steps", "100")  # fmt: skip
    run, whole = (str(tmp_path / name) for name in ("run", "whole"))
    assert main([*few, "--training.steps", "150", "--out", run]) == 0
    assert main([*few, "--training.steps", "300", "--out", run, "--resume"]) == 0
    assert main([*few, "--training.steps", "300", "--out", whole]) == 0
    ours, same = (load_bundle(folder).policy.state_dict() for folder in (run, whole))
    assert all(torch.equal(value, same[name]) for name, value in ours.items())


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"range_start is 0\.7, above range_end, 0\.6"):
        APRLConfig(range_start=0.7)
    with pytest.raises(ValueError, match="n_step is 3, but the model predicts one step"):
        APRLConfig(n_step=3)
