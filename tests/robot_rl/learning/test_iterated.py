"""A row of critics: with one it is the parent; with several, values travel faster."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.replay import NEXT
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.iterated import IteratedQ
from robot_rl.learning.parts.heads import HeadName
from robot_rl.recipes.i_qn import IteratedSAC
from robot_rl.recipes.sac import SAC

SMALL = dict(hidden=(16, 16), critics=3, subset=2, bins=21)


def policy() -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(Size(5, 1), GaussianConfig(hidden=(16, 16), initial_std=1.0))


def batch(seed: int, rows: int = 64, discount: float = 0.9) -> dict[str, Tensor]:
    """Five states in a ring; the step out of the last gives 1 and ends the episode. Actions do nothing."""
    rng = torch.Generator().manual_seed(seed)
    place = torch.randint(0, 5, (rows,), generator=rng)
    state = torch.eye(5)
    return {
        "observation.state": state[place], NEXT + "observation.state": state[(place + 1) % 5],
        "action": 2 * torch.rand(rows, 1, generator=rng) - 1, "reward": (place == 4).float(),
        "discount": discount * (place < 4), "intervention": torch.zeros(rows, dtype=torch.bool),
    }  # fmt: skip


@pytest.mark.parametrize("head", ["scalar", "hl-gauss", "gaussian"])
def test_one_iterate_is_the_parent(head: HeadName) -> None:
    """The same metrics and networks to the bit, and the same random numbers."""
    numbers: dict[str, Any] = SMALL | {"head": head, "value_low": -5.0, "value_high": 5.0}
    one = ActorCritic(policy(), replace(SAC().agent, **numbers), 3)
    other = IteratedQ(policy(), replace(IteratedSAC().agent, iterates=1, **numbers), 3)
    for seed in range(4):
        assert one.update(batch(seed)) == other.update(batch(seed))
    for part in ("policy", "critic", "target"):
        theirs = getattr(other, part).state_dict()
        assert all(torch.equal(v, theirs[k]) for k, v in getattr(one, part).state_dict().items()), part
    assert torch.equal(one.rng.get_state(), other.rng.get_state())


def test_each_iterate_regresses_the_one_before() -> None:
    config = replace(IteratedSAC().agent, iterates=3, entropy_backup=False, **(SMALL | {"subset": 3}))  # type: ignore[arg-type]
    learner, data = IteratedQ(policy(), config), batch(0)
    after = {"observation.state": data[NEXT + "observation.state"]}
    twin = copy.deepcopy(learner)
    with torch.no_grad():
        u, _ = twin._next_action(after)
        at, wanted = twin.policy.features(after), 0.0
        before = twin.target.value(at, u)[:3]
        ahead = [before, *twin.critic.value(at, u).split(3)[:2]]
        q = twin.critic.value(twin.policy.features(data), data["action"]).split(3)
        for mine, their in zip(q, ahead, strict=True):
            wanted += float((mine - data["reward"] - data["discount"] * their.amin(0)).square().mean(1).sum())
    assert float(learner.update(data, LearningPhase.WARMUP)["critic/loss"]) == pytest.approx(wanted, rel=1e-5)


def test_values_travel_faster_through_a_row() -> None:
    """With a target that hardly moves, one critic knows one step of a chain of five, four know four."""
    errors = {}
    for iterates in (1, 4):
        small = dict(hidden=(32, 32), critic_lr=3e-3, tau=0.001, entropy_backup=False)
        config = replace(IteratedSAC().agent, iterates=iterates, **small)  # type: ignore[arg-type]
        learner = IteratedQ(policy(), config)
        for seed in range(300):
            learner.update(batch(seed), LearningPhase.WARMUP)
        with torch.no_grad():
            found = learner.critic.value(torch.eye(5), torch.zeros(5, 1))[-config.critics :].mean(0)
        errors[iterates] = float((found - 0.9 ** torch.tensor([4.0, 3, 2, 1, 0])).abs().mean())
    assert errors[4] < 0.5 * errors[1], errors
