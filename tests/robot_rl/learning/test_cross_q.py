"""Critics without target networks: normalized over both halves of a batch, and plain ones at their limit."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.ensemble import EnsembleBatchNorm
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.replay import NEXT
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.algorithms.cross_q import CrossQ
from robot_rl.recipes.flash_sac import FlashSAC


def policy() -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(Size(5, 1), GaussianConfig(hidden=(16, 16), initial_std=1.0, layer_norm=False))


def build(**changes: Any) -> CrossQ:
    return CrossQ(policy(), replace(FlashSAC().agent, **({"hidden": (32, 32)} | changes)))


def batch(seed: int, rows: int = 64, discount: float = 0.8) -> dict[str, Tensor]:
    """Five states in a row; the step out of the last gives 1 and ends the episode. Actions do nothing."""
    rng = torch.Generator().manual_seed(seed)
    place = torch.randint(0, 5, (rows,), generator=rng)
    state = torch.eye(5)
    return {
        "observation.state": state[place], NEXT + "observation.state": state[(place + 1) % 5],
        "action": 2 * torch.rand(rows, 1, generator=rng) - 1, "reward": (place == 4).float(),
        "discount": discount * (place < 4), "intervention": torch.zeros(rows, dtype=torch.bool),
    }  # fmt: skip


def test_batch_norm_is_torchs_member_by_member() -> None:
    ours, x = EnsembleBatchNorm(3, 4), 2 + 3 * torch.randn(3, 50, 4)
    theirs = [nn.BatchNorm1d(4, affine=False, momentum=0.01) for _ in range(3)]
    for _ in range(3):
        torch.testing.assert_close(ours(x), torch.stack([norm(x[k]) for k, norm in enumerate(theirs)]))
    ours.eval()
    for k, norm in enumerate(theirs):
        torch.testing.assert_close(ours(x)[k], norm.eval()(x[k]))


def test_without_batch_norm_it_is_sac_with_a_target_that_is_the_critic() -> None:
    """One batch of both halves gives the numbers of two, up to rounding."""
    joint = build(hidden=(16, 16), batch_norm=False)
    settings = {k: v for k, v in vars(joint.config).items() if k != "batch_norm"} | {"tau": 1.0}
    plain = ActorCritic(policy(), ActorCriticConfig(**settings))
    for seed in range(6):
        one, other = plain.update(batch(seed)), joint.update(batch(seed))
        assert {k: float(v) for k, v in one.items()} == pytest.approx({k: float(v) for k, v in other.items()}, rel=1e-3)
    for mine, their in zip(plain.critic.parameters(), joint.critic.parameters(), strict=True):
        torch.testing.assert_close(mine, their, rtol=0, atol=1e-4)
    assert torch.equal(plain.rng.get_state(), joint.rng.get_state())


def test_values_of_a_chain_are_powers_of_the_discount() -> None:
    """With running statistics, as the actor sees them, and without a target network."""
    learner = build(entropy_backup=False)
    for seed in range(500):
        learner.update(batch(seed, 128), LearningPhase.WARMUP)
    with torch.no_grad():
        found = learner.critic.value(torch.eye(5), torch.zeros(5, 1)).mean(0)
    assert torch.allclose(found, 0.8 ** torch.tensor([4.0, 3, 2, 1, 0]), atol=0.08), found


def test_statistics_are_those_of_both_halves_and_survive_a_checkpoint() -> None:
    learner, other = build(), build()
    for seed in range(3):
        learner.update(batch(seed))
        assert not learner.critic.training, "the actor and a bundle see running statistics"
    first = next(m for m in learner.critic.modules() if isinstance(m, EnsembleBatchNorm))
    assert (first.mean.unflatten(0, (2, -1))[:, :5] > 0).all(), "every state is seen in one half or the other"
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    one, two = learner.update(batch(9)), other.update(batch(9))
    assert {k: float(v) for k, v in one.items()} == {k: float(v) for k, v in two.items()}
