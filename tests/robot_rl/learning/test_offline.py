"""Offline updates: limits at which a method is another one, and a problem whose answer the data hide."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.replay import NEXT
from robot_rl.learning.algorithms.iql import IQL, IQLConfig
from robot_rl.learning.algorithms.td3_bc import TD3BC, TD3BCConfig
from robot_rl.learning.parts.explore import ExplorationConfig

COMMON = dict(layer_norm=False, hidden=(32, 32), n_step=1, l2=0.0, actor_delay=1, critic_lr=1e-3, actor_lr=1e-3)
STILL = ExplorationConfig(warmup_noise=None, noise_memory=0.0)


def policy(std: float | None, seed: int = 0) -> GaussianPolicy:
    torch.manual_seed(seed)
    return GaussianPolicy(Size(2, 1), GaussianConfig(hidden=(32, 32), std=std, layer_norm=False))


def bandit(count: int, rng: torch.Generator) -> dict[str, Tensor]:
    """One-step episodes: most data act at -0.5 for a reward of 0, some at 0.5 for 1; nothing is known between them."""
    good = torch.rand(count, generator=rng) < 0.2
    action = torch.where(good, 0.5, -0.5) + 0.05 * torch.randn(count, generator=rng)
    state = torch.randn(count, 2, generator=rng)
    zero = torch.zeros(count)
    return {
        "observation.state": state, NEXT + "observation.state": state, "action": action[:, None],
        "reward": good.float(), "discount": zero, "intervention": zero.bool(),
    }  # fmt: skip


def learned(agent: IQL | TD3BC, updates: int = 600) -> float:
    """Return the mean action after updates on the bandit's data."""
    rng = torch.Generator().manual_seed(1)
    for _ in range(updates):
        agent.update(bandit(128, rng))
    agent.finish()
    with torch.no_grad():
        return float(agent.policy.act({"observation.state": torch.randn(200, 2, generator=rng)}, rng).mean())


def iql(**changes: float) -> IQL:
    config = IQLConfig(**COMMON, ema_decay=0.9, exploration=STILL)  # type: ignore[arg-type]
    return IQL(policy(None), replace(config, **changes), 0, (0.0, 1.0))  # type: ignore[arg-type]


def td3_bc(**changes: float) -> TD3BC:
    config = TD3BCConfig(**COMMON, ema_decay=0.9, pooling="first", exploration=STILL)  # type: ignore[arg-type]
    return TD3BC(policy(0.1), replace(config, **changes), 0, (0.0, 1.0))  # type: ignore[arg-type]


def test_the_better_of_two_actions_is_found_where_cloning_takes_their_mean() -> None:
    assert learned(iql(expectile=0.7, temperature=10.0)) > 0.35
    assert learned(td3_bc(alpha=2.5)) > 0.35
    assert -0.45 < learned(td3_bc(alpha=0.0)) < -0.1, "80 % of the data are at -0.5, 20 % at 0.5"
    assert learned(iql(expectile=0.7, temperature=0.0)) < 0


def test_without_a_weight_on_values_the_actor_is_cloned_exactly() -> None:
    """TD3+BC with alpha 0 takes the steps of regression, IQL with temperature 0 those of maximum likelihood."""
    for agent, clone in ((td3_bc(alpha=0.0), policy(0.1)), (iql(temperature=0.0), policy(None))):
        optimizer = torch.optim.Adam(clone.actor.parameters(), 1e-3, fused=True)
        rng = torch.Generator().manual_seed(2)
        for _ in range(5):
            batch = bandit(64, rng)
            agent.update(batch)
            features = clone.actor_features(batch)
            if isinstance(agent, TD3BC):
                loss = (clone.actor.mean(features) - batch["action"]).square().mean()
            else:
                loss = -clone.actor.log_prob(features, batch["action"]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(clone.actor.parameters(), agent.config.grad_clip or 0)
            optimizer.step()
        for ours, theirs in zip(agent.policy.actor.parameters(), clone.actor.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_values_are_an_expectile_of_the_data() -> None:
    """With expectile 0.5 V is the mean reward, 0.2; with 0.9 it is near the better action's."""
    values = {}
    for tau in (0.5, 0.9):
        agent = iql(expectile=tau)
        learned(agent, 400)
        with torch.no_grad():
            seen = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
            values[tau] = float(agent.state_value(seen).mean())
    assert abs(values[0.5] - 0.2) < 0.08
    assert abs(values[0.9] - 0.9 * 0.2 / (0.9 * 0.2 + 0.1 * 0.8)) < 0.12


def test_an_offline_agent_resumes_exactly() -> None:
    rng = torch.Generator().manual_seed(3)
    first, second = iql(), iql()
    for _ in range(3):
        first.update(bandit(64, rng))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    batch = bandit(64, rng)
    one, other = first.update(batch), second.update(batch)
    assert {k: float(v) for k, v in one.items()} == {k: float(v) for k, v in other.items()}


def test_log_probability_is_that_of_samples() -> None:
    actor = policy(None).actor
    features = torch.randn(300, 2)
    sampled, expected = actor.sample(features, torch.Generator().manual_seed(0))
    inside = (sampled.abs() < 0.99).all(1)
    assert torch.allclose(actor.log_prob(features, sampled)[inside], expected[inside], atol=1e-3)
