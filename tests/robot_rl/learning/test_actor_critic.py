"""Updates of the actor-critic on problems with known answers."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from robot_rl.learning.agent import LearningPhase
from robot_rl.recipes import recipes
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import POWERS, Batch, chain, chain_values, rng

Build = Callable[..., Any]


def bandit(count: int, generator: torch.Generator) -> Batch:
    """One-step episodes with reward 1 - (a - 0.3)^2 for uniform actions, on a base action of 0."""
    action, zero = 2 * torch.rand(count, 1, generator=generator) - 1, torch.zeros(count, 1)
    names = ("observation.state", "next.observation.state", "base", "next.base")
    reward = 1 - (action[:, 0] - 0.3).square()
    return dict.fromkeys(names, zero) | {"action": action, "reward": reward, "discount": zero[:, 0]}


@pytest.mark.parametrize(("std", "entropy"), [(0.1, False), (None, True)], ids=["td3", "sac"])
def test_best_action_and_values_of_a_bandit(residual: Build, agent: Build, std: float | None, entropy: bool) -> None:
    policy = residual(1, 1, scale=1.0, std=std, hidden=(32,))
    learner = agent(policy, hidden=(64, 64), critic_lr=3e-3, actor_lr=3e-3, entropy=entropy, value_low=-1.0, tau=0.05)
    generator = rng()
    for _ in range(500):
        learner.update(bandit(128, generator))
    seen = {"observation.state": torch.zeros(1, 1), "base": torch.zeros(1, 1)}
    action = policy.transform(policy.actor.mean(policy.actor_features(seen)), seen)
    assert action.item() == pytest.approx(0.3, abs=0.08)
    grid = torch.tensor([[-0.8], [0.0], [0.3], [0.8]])
    q = learner.critic.value(torch.zeros(4, 1), grid).mean(0)
    assert torch.allclose(q, 1 - (grid[:, 0] - 0.3).square(), atol=0.1)


@pytest.mark.parametrize(("settings", "cut", "values"), [
    *[({"head": head}, True, POWERS) for head in ("scalar", "hl-gauss", "c51", "gaussian")],
    ({"value_high": 10.0}, False, POWERS / (1 - 0.8**5)),
    ({"value_low": 0.0, "value_high": 0.25}, True, 0.25 * POWERS),
], ids=["scalar", "hl-gauss", "c51", "gaussian", "no-termination", "clipped"])  # fmt: skip
def test_values_of_a_chain(residual: Build, agent: Build, settings: dict[str, Any], cut: bool, values: Tensor) -> None:
    """Powers of the discount. Without termination the chain is a ring; clipped targets scale all values."""
    learner = agent(residual(5, 1), bins=21, hidden=(32, 32), critic_lr=3e-3, tau=0.1, **settings)
    generator = rng()
    for _ in range(600 if cut else 800):
        learner.update(chain(generator, 128, cut=cut), LearningPhase.WARMUP)
    assert torch.allclose(chain_values(learner), values, atol=0.04 if cut else 0.08)


@pytest.mark.parametrize("name", ["sac", "dsac-t", "annealed-q", "i-qn", "flash-sac", "srl"])
def test_soft_values_include_the_policys_entropy_without_any_reward(name: str) -> None:
    """V = sum over k > 0 of discount^k alpha H = discount alpha H / (1 - discount), beyond the returns in [0, 1]."""
    recipe, discount, rows = recipes.get(name)(), 0.5, 64
    policy = GaussianPolicy(Size(2, 4), replace(recipe.policy, hidden=(16,), horizon=2 if name == "srl" else 1))
    numbers: dict[str, Any] = dict(hidden=(32,), entropy=False, discount=discount, tau=0.2, critic_lr=1e-2)
    config = replace(recipe.agent, **numbers, initial_temperature=1.0, anneal_updates=1)
    learner, generator = recipe.agent_class(policy, config, 0, (0.0, 1.0)), rng()
    for _ in range(150):
        now, after = torch.randn(2, rows, 2, generator=generator)
        batch = {"observation.state": now, "next.observation.state": after, "reward": torch.zeros(rows)}
        batch |= {"action": 2 * torch.rand(rows, 4, generator=generator) - 1, "discount": torch.full((rows,), discount)}
        metrics = learner.update(batch, LearningPhase.WARMUP)
    log_prob = policy.actor.sample(torch.randn(9999, 2, generator=generator), generator)[1].detach()
    value = -discount / (1 - discount) * float(log_prob.mean()) / policy.horizon
    assert value > 1.5 and metrics["critic/q"].item() == pytest.approx(value, rel=0.1)


@pytest.mark.parametrize("head", ["hl-gauss", "c51"])
def test_bins_need_explicit_limits_for_soft_values(residual: Build, agent: Build, head: str) -> None:
    soft = dict(head=head, entropy=True, entropy_backup=True)
    with pytest.raises(ConfigError, match="--agent.value-low"):
        agent(residual(std=None), **soft)
    learner = agent(residual(std=None), **soft, value_low=-6.0, value_high=5.0)
    assert learner.target.value(torch.randn(9, 3), torch.rand(9, 2)).abs().max() < 11 / 100, "initial values are 0"


def test_target_follows_at_rate_tau_and_the_actor_moves_every_second_update(residual: Build, agent: Build) -> None:
    learner = agent(residual(5, 1), tau=0.25)
    before = [p.clone() for p in learner.target.parameters()]
    learner.update(chain(rng(), 32))
    for old, new, source in zip(before, learner.target.parameters(), learner.critic.parameters(), strict=True):
        assert torch.allclose(new, 0.75 * old + 0.25 * source, atol=1e-6)
        assert not new.requires_grad
    policy = residual(5, 1)
    learner, base, moved, generator = agent(policy, actor_delay=2), copy.deepcopy(policy.base.state_dict()), [], rng()
    for _ in range(6):
        before = copy.deepcopy(policy.actor.state_dict())
        learner.update(chain(generator, 16))
        moved.append(any(not torch.equal(v, before[k]) for k, v in policy.actor.state_dict().items()))
    assert moved == [False, True] * 3 and (learner.updates.critic, learner.updates.actor) == (6, 3)
    assert all(torch.equal(v, base[k]) for k, v in policy.base.state_dict().items())
    assert all(p.grad is None for p in policy.base.parameters())


def test_temperature_brings_the_entropy_to_its_target(agent: Build, residual: Build) -> None:
    entropy = dict(entropy=True, target_entropy=-0.5, initial_temperature=0.1)
    speed = dict(hidden=(32, 32), actor_lr=1e-2, critic_lr=3e-3, actor_delay=1, value_low=-1.0)
    learner = agent(residual(1, 1, scale=1.0, std=None), **entropy, **speed)
    generator = rng()
    entropies = [float(learner.update(bandit(64, generator))["actor/entropy"]) for _ in range(350)]
    assert entropies[0] < -0.8, "the initial distribution is narrow"
    assert sum(entropies[-100:]) / 100 == pytest.approx(-0.5, abs=0.2)


def test_resumed_equals_uninterrupted(agent: Build, residual: Build, same: Callable[[Any, Any], bool]) -> None:
    one, other = (agent(residual(5, 1, std=None), seed=s, entropy=True, critics=3, subset=2) for s in (1, 2))
    generator = rng()
    batches = [chain(generator, 16) for _ in range(8)]
    for k, batch in enumerate(batches):
        if k == 4:
            other.load_state_dict(copy.deepcopy(one.state_dict()))
        one.update(batch)
        if k >= 4:
            other.update(batch)
    assert same(one.state_dict(), other.state_dict())
