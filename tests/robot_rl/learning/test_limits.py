"""Limits of settings at which an agent is bit-identical to a simpler one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from policies.execution import ChunkExecutor
from robot_rl.learning.agent import LearningPhase
from tests.robot_rl.learning.conftest import Batch, close, equal, rng

Build = Callable[..., Any]


def random_batch(rows: int = 32, seed: int = 0) -> Batch:
    generator = rng(seed)
    names = {"observation.state": 3, "next.observation.state": 3, "base": 2, "next.base": 2, "action": 2}
    batch = {name: 2 * torch.rand(rows, size, generator=generator) - 1 for name, size in names.items()}
    discount = 0.9 * (torch.rand(rows, generator=generator) < 0.8)
    person = torch.rand(rows, generator=generator) < 0.5
    return batch | {"reward": torch.rand(rows, generator=generator), "discount": discount, "intervention": person}


def test_residual_of_scale_0_acts_as_its_base_after_learning(residual: Build, agent: Build, diffusion: Build) -> None:
    """Deployed it is bit-identical with the same generator; while exploring, it executes the base's action."""
    base = diffusion()
    policy, before = residual(scale=0.0, zero_init=False, std=None, base=base), copy.deepcopy(base)
    learner, actor = agent(policy, entropy=True, imitation=1.0, actor_delay=1), copy.deepcopy(policy.actor)
    for seed in range(4):
        learner.update(random_batch(seed=seed))
    assert not equal(policy.actor, actor) and equal(base, before)
    learner.finish()
    runners, generators = [ChunkExecutor(p, 5) for p in (policy, base)], [rng(7), rng(7)]
    for t in range(9):
        seen = {"observation.state": torch.randn(5, 3, generator=rng(t))}
        if t == 4:
            for runner in runners:
                runner.reset(torch.tensor([0, 3]))
        assert torch.equal(*(r.act(seen, g) for r, g in zip(runners, generators, strict=True)))
    for phase in LearningPhase:
        executed, kept = learner.act({"observation.state": torch.randn(5, 3, generator=rng())}, rng(), phase)
        assert torch.equal(executed, kept["base"])


def test_weights_of_0_leave_the_plain_actor_loss(residual: Build, agent: Build) -> None:
    """The update equals one step of Adam on the mean of Q, written in plain torch."""
    learner = agent(residual(zero_init=False), l2=0.0, imitation=0.0, actor_delay=1, grad_clip=None, actor_lr=1e-2)
    batch, policy = random_batch(), learner.policy
    learner.update(batch, LearningPhase.WARMUP)
    learner.updates.critic = 0
    plain, critic = copy.deepcopy(policy), copy.deepcopy(learner)
    critic.update(batch, LearningPhase.WARMUP)  # the critic is updated first
    u = plain.actor.mean(plain.actor_features(batch))
    loss = -critic.critic.value(plain.features(batch), plain.transform(u, batch)).mean()
    optimizer = torch.optim.Adam(plain.actor.parameters(), 1e-2, fused=True)
    loss.backward()
    optimizer.step()
    learner.update(batch)
    close(policy.actor, plain.actor)
    for weights in ({"l2": 1.0, "imitation": 0.0}, {"imitation": 1.0}):
        other = agent(residual(zero_init=False), **weights)
        other.policy.load_state_dict(plain.state_dict())
        other._update_actor(batch)
        assert not equal(other.policy.actor, plain.actor)


@pytest.mark.parametrize(("critics", "subset"), [(1, 1), (3, 3), (3, 1)])
def test_target_is_one_step_of_td(residual: Build, agent: Build, critics: int, subset: int) -> None:
    """r + discount * min over the subset. A single critic is its own minimum; a whole subset draws nothing."""
    limits = dict(value_low=-9.0, value_high=9.0, target_noise=0.0)
    learner = agent(residual(), critics=critics, subset=subset, **limits)
    batch, policy, state = random_batch(), learner.policy, learner.rng.get_state()
    after = {name.removeprefix("next."): value for name, value in batch.items() if name.startswith("next.")}
    with torch.no_grad():
        following = policy.transform(policy.actor.mean(policy.actor_features(after)), after)
        values = learner.target.value(policy.features(after), following)
        losses = []
        for member in [None] if subset == critics else range(critics):
            least = values.amin(0) if member is None else values[member]
            q = learner.critic.value(policy.features(batch), batch["action"])
            losses.append(float((q - batch["reward"] - batch["discount"] * least).square().mean(1).sum()))
    loss = float(learner.update(batch, LearningPhase.WARMUP)["critic/loss"])
    assert any(loss == pytest.approx(each, rel=1e-5) for each in losses)
    if critics == subset == 1:
        other = torch.Generator()
        other.set_state(state)
        torch.randn((len(batch["action"]), 2), generator=other)  # the smoothing noise, drawn in spite of its size 0
        assert torch.equal(learner.rng.get_state(), other.get_state())


def test_after_annealing_the_update_is_td(residual: Build, agent: Build) -> None:
    """Before, the loss is the expectile's; afterwards the networks are bit-identical."""
    plain, other = (agent(residual(std=None), optimism=tau, anneal_updates=5) for tau in (0.5, 0.9))
    other.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert plain.update(random_batch())["critic/loss"] != other.update(random_batch())["critic/loss"]
    other.load_state_dict(copy.deepcopy(plain.state_dict()))
    plain.updates.critic = other.updates.critic = 5
    for seed in range(4):
        assert plain.update(random_batch(seed=seed)) == other.update(random_batch(seed=seed))
    assert equal(plain.policy, other.policy) and equal(plain.critic, other.critic)
