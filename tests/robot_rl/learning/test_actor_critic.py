"""The update on problems whose answer is known."""

from __future__ import annotations

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

Build = Callable[..., Any]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bandit(count: int, generator: torch.Generator, best: float = 0.3) -> dict[str, Tensor]:
    """One step, then the end: reward 1 - (a - best)^2 for uniform actions on a base of 0."""
    action = 2 * torch.rand(count, 1, generator=generator) - 1
    state, zero = torch.zeros(count, 1), torch.zeros(count, 1)
    reward = 1 - (action[:, 0] - best).square()
    common = {
        "observation.state": state,
        "base": zero,
        "next.observation.state": state,
        "next.base": zero,
        "discount": torch.zeros(count),
    }
    return common | {"action": action, "reward": reward}


@pytest.mark.parametrize(("std", "entropy"), [(0.1, False), (None, True)], ids=["td3", "sac"])
def test_finds_the_best_action_of_a_bandit(residual: Build, agent: Build, std: float | None, entropy: bool) -> None:
    policy = residual(1, 1, scale=1.0, std=std, hidden=(32,))
    learner = agent(policy, hidden=(64, 64), critic_lr=3e-3, actor_lr=3e-3, entropy=entropy, value_low=-1.0, tau=0.05)
    generator = rng()
    for _ in range(500):
        learner.update(bandit(128, generator))
    seen = {"observation.state": torch.zeros(1, 1), "base": torch.zeros(1, 1)}
    found = policy.transform(policy.actor.mean(policy.actor_features(seen)), seen)
    assert found.item() == pytest.approx(0.3, abs=0.08)
    grid = torch.tensor([[-0.8], [0.0], [0.3], [0.8]])
    q = learner.critic.value(torch.zeros(4, 1), grid).mean(0)
    assert torch.allclose(q, 1 - (grid[:, 0] - 0.3).square(), atol=0.1)


def chain(generator: torch.Generator, count: int, discount: float, cut: bool = True) -> dict[str, Tensor]:
    """Five states in a row; the step out of the last gives 1 and ends the episode. Actions do nothing."""
    place = torch.randint(0, 5, (count,), generator=generator)
    one_hot = torch.eye(5)
    last = place == 4
    following = one_hot[torch.where(last, 0, place + 1)]
    action = 2 * torch.rand(count, 1, generator=generator) - 1
    return {
        "observation.state": one_hot[place],
        "base": torch.zeros(count, 1),
        "action": action,
        "reward": last.float(),
        "discount": torch.where(last & cut, 0.0, discount),
        "next.observation.state": following,
        "next.base": torch.zeros(count, 1),
    }


def values(learner: Any) -> Tensor:
    return learner.critic.value(torch.eye(5), torch.zeros(5, 1)).mean(0).detach()


@pytest.mark.parametrize("head", ["scalar", "hl-gauss", "c51", "gaussian"])
def test_values_of_a_chain_are_powers_of_the_discount(residual: Build, agent: Build, head: str) -> None:
    learner = agent(residual(5, 1), head=head, bins=21, hidden=(32, 32), critic_lr=3e-3, tau=0.1)
    generator = rng()
    for _ in range(600):
        learner.update(chain(generator, 128, 0.8), LearningPhase.WARMUP)
    assert torch.allclose(values(learner), 0.8 ** torch.tensor([4.0, 3, 2, 1, 0]), atol=0.04)


def test_termination_cuts_the_bootstrap(residual: Build, agent: Build) -> None:
    """Without the cut the chain is a ring, worth 1 / (1 - 0.8^5) at its last state."""
    learner = agent(residual(5, 1), hidden=(32, 32), critic_lr=3e-3, tau=0.1, value_high=10.0)
    generator = rng()
    for _ in range(800):
        learner.update(chain(generator, 128, 0.8, cut=False), LearningPhase.WARMUP)
    assert values(learner)[4].item() == pytest.approx(1 / (1 - 0.8**5), abs=0.08)


def test_targets_are_clipped_to_known_returns(residual: Build, agent: Build) -> None:
    learner = agent(residual(5, 1), hidden=(32, 32), critic_lr=3e-3, value_low=0.0, value_high=0.25)
    generator = rng()
    for _ in range(300):
        learner.update(chain(generator, 64, 0.8), LearningPhase.WARMUP)
    assert values(learner).max() < 0.3


@pytest.mark.parametrize("name", ["sac", "dsac-t", "annealed-q", "i-qn", "flash-sac", "srl"])
def test_values_of_a_fixed_policy_hold_its_entropy_though_no_reward_is_paid(name: str) -> None:
    """V = sum over k > 0 of discount^k alpha H = discount alpha H / (1 - discount), beyond the returns in [0, 1]."""
    recipe, discount, rows = recipes.get(name)(), 0.5, 64
    policy = GaussianPolicy(Size(2, 4), replace(recipe.policy, hidden=(16,), horizon=2 if name == "srl" else 1))
    numbers: dict[str, Any] = dict(hidden=(32,), entropy=False, discount=discount, tau=0.2, critic_lr=1e-2)
    config = replace(recipe.agent, **numbers, initial_temperature=1.0, anneal_updates=1)
    learner, generator = recipe.agent_class(policy, config, 0, (0.0, 1.0)), rng()
    for _ in range(150):
        here, after = torch.randn(2, rows, 2, generator=generator)
        batch = {"observation.state": here, "next.observation.state": after, "reward": torch.zeros(rows)}
        batch |= {"action": 2 * torch.rand(rows, 4, generator=generator) - 1, "discount": torch.full((rows,), discount)}
        metrics = learner.update(batch, LearningPhase.WARMUP)
    log_prob = policy.actor.sample(torch.randn(9999, 2, generator=generator), generator)[1].detach()
    known = -discount / (1 - discount) * float(log_prob.mean()) / policy.horizon
    assert known > 1.5 and metrics["critic/q"].item() == pytest.approx(known, rel=0.1)


@pytest.mark.parametrize("head", ["hl-gauss", "c51"])
def test_bins_take_soft_values_only_in_a_range_that_is_named(residual: Build, agent: Build, head: str) -> None:
    soft = dict(head=head, entropy=True, entropy_backup=True)
    with pytest.raises(ConfigError, match="--agent.value-low"):
        agent(residual(std=None), **soft)
    learner = agent(residual(std=None), **soft, value_low=-6.0, value_high=5.0)
    assert learner.target.value(torch.randn(9, 3), torch.rand(9, 2)).abs().max() < 11 / 100, "they begin at 0"


def test_target_is_the_minimum_over_the_subset(residual: Build, agent: Build) -> None:
    """With every member in the subset the loss follows from the formula; the noise is switched off."""
    learner = agent(residual(5, 1), critics=4, subset=4, target_noise=0.0, value_low=-9.0, value_high=9.0)
    batch = chain(rng(), 32, 0.8)
    policy = learner.policy
    with torch.no_grad():
        after = {"observation.state": batch["next.observation.state"], "base": batch["next.base"]}
        following = policy.transform(policy.actor.mean(policy.actor_features(after)), after)
        worst = learner.target.value(after["observation.state"], following).amin(0)
        q = learner.critic.value(batch["observation.state"], batch["action"])
        wanted = (q - batch["reward"] - batch["discount"] * worst).square().mean(1).sum()
    assert torch.allclose(learner.update(batch)["critic/loss"], wanted)


def test_target_follows_slowly(residual: Build, agent: Build) -> None:
    learner = agent(residual(5, 1), tau=0.25)
    before = [p.clone() for p in learner.target.parameters()]
    learner.update(chain(rng(), 32, 0.8))
    for old, new, source in zip(before, learner.target.parameters(), learner.critic.parameters(), strict=True):
        assert torch.allclose(new, 0.75 * old + 0.25 * source, atol=1e-6)
        assert not new.requires_grad


def test_the_actor_moves_every_second_update_and_the_base_never(agent: Build, residual: Build) -> None:
    policy = residual(5, 1)
    learner = agent(policy, actor_delay=2)
    base = copy.deepcopy(policy.base.state_dict())
    moved = []
    generator = rng()
    for _ in range(6):
        before = copy.deepcopy(policy.actor.state_dict())
        learner.update(chain(generator, 16, 0.8))
        moved.append(any(not torch.equal(v, before[k]) for k, v in policy.actor.state_dict().items()))
    assert moved == [False, True] * 3
    assert (learner.updates.critic, learner.updates.actor) == (6, 3)
    assert all(torch.equal(v, base[k]) for k, v in policy.base.state_dict().items())
    assert all(p.grad is None for p in policy.base.parameters())


def test_a_residual_of_scale_0_is_the_base_whatever_is_imitated(agent: Build, residual: Build) -> None:
    learner = agent(residual(1, 1, scale=0.0), imitation=10.0, actor_delay=1)
    learner.update(bandit(16, rng()) | {"action": torch.zeros(16, 1), "intervention": torch.ones(16)})
    assert all(p.isfinite().all() for p in learner.policy.actor.parameters())


def test_temperature_brings_the_entropy_to_its_target(agent: Build, residual: Build) -> None:
    entropy = dict(entropy=True, target_entropy=-0.5, initial_temperature=0.1)
    speed = dict(hidden=(32, 32), actor_lr=1e-2, critic_lr=3e-3, actor_delay=1, value_low=-1.0)
    learner = agent(residual(1, 1, scale=1.0, std=None), **entropy, **speed)
    generator = rng()
    entropies = [float(learner.update(bandit(64, generator))["actor/entropy"]) for _ in range(350)]
    assert entropies[0] < -0.8, "it starts narrow"
    assert sum(entropies[-100:]) / 100 == pytest.approx(-0.5, abs=0.2)


def test_resumed_equals_uninterrupted(agent: Build, residual: Build, same: Callable[[Any, Any], bool]) -> None:
    one, other = (agent(residual(5, 1, std=None), seed=s, entropy=True, critics=3, subset=2) for s in (1, 2))
    generator = rng()
    batches = [chain(generator, 16, 0.8) for _ in range(8)]
    for batch in batches[:4]:
        one.update(batch)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for batch in batches[4:]:
        one.update(batch)
        other.update(batch)
    assert same(one.state_dict(), other.state_dict())
