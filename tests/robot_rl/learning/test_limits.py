"""Where a setting is at its limit, an agent is the simpler one to the bit."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Policy, Size
from policies.execution import ChunkExecutor
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.ppo import PPO, PPOConfig
from robot_rl.learning.parts.objectives import annealed, expectile_error

Build = Callable[..., Any]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch_of(rows: int = 32, seed: int = 0) -> dict[str, Tensor]:
    generator = rng(seed)
    names = {"observation.state": 3, "next.observation.state": 3, "base": 2, "next.base": 2, "action": 2}
    batch = {name: 2 * torch.rand(rows, size, generator=generator) - 1 for name, size in names.items()}
    discount = 0.9 * (torch.rand(rows, generator=generator) < 0.8)
    person = torch.rand(rows, generator=generator) < 0.5
    return batch | {"reward": torch.rand(rows, generator=generator), "discount": discount, "intervention": person}


def fingerprint(policy: Policy) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in policy.state_dict().values())).hexdigest()


def test_a_residual_of_scale_0_acts_as_its_base_after_learning(residual: Build, agent: Build, diffusion: Build) -> None:
    """Deployed with the same generator to the bit; while it explores, what is executed is the base's action."""
    base = diffusion()
    policy = residual(scale=0.0, zero_init=False, std=None, base=base)
    before, learner = fingerprint(base), agent(policy, entropy=True, imitation=1.0, actor_delay=1)
    actor = copy.deepcopy(policy.actor.state_dict())
    for seed in range(4):
        learner.update(batch_of(seed=seed))
    assert any(not torch.equal(v, actor[k]) for k, v in policy.actor.state_dict().items()), "it has learned something"
    assert fingerprint(base) == before
    learner.finish()
    runners, generators = [ChunkExecutor(p, 5) for p in (policy, base)], [rng(7), rng(7)]
    for t in range(9):
        seen = {"observation.state": torch.randn(5, 3, generator=rng(t))}
        if t == 4:
            for runner in runners:
                runner.reset(torch.tensor([0, 3]))
        one, two = (r.act(seen, g) for r, g in zip(runners, generators, strict=True))
        assert torch.equal(one, two)
    for phase in LearningPhase:
        executed, kept = learner.act({"observation.state": torch.randn(5, 3, generator=rng())}, rng(), phase)
        assert torch.equal(executed, kept["base"])


def test_the_base_is_frozen_and_the_correction_is_not(residual: Build, agent: Build) -> None:
    policy = residual(scale=0.5)
    learner, base, whole = agent(policy, actor_delay=1), fingerprint(policy.base), fingerprint(policy)
    for seed in range(3):
        learner.update(batch_of(seed=seed))
    assert fingerprint(policy.base) == base and fingerprint(policy) != whole


def test_weights_of_0_leave_the_plain_actor_loss(residual: Build, agent: Build) -> None:
    """One step of Adam along the mean of Q, as a few lines of torch take it."""
    learner = agent(residual(zero_init=False), l2=0.0, imitation=0.0, actor_delay=1, grad_clip=None, actor_lr=1e-2)
    batch, policy = batch_of(), learner.policy
    learner.update(batch, LearningPhase.WARMUP)
    learner.updates.critic = 0
    plain = copy.deepcopy(policy)
    critic = copy.deepcopy(learner)
    critic.update(batch, LearningPhase.WARMUP)  # the critic steps first
    u = plain.actor.mean(plain.actor_features(batch))
    loss = -critic.critic.value(plain.features(batch), plain.transform(u, batch)).mean()
    optimizer = torch.optim.Adam(plain.actor.parameters(), 1e-2, fused=True)
    loss.backward()
    optimizer.step()
    learner.update(batch)
    for one, two in zip(policy.actor.parameters(), plain.actor.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=0)
    others = agent(residual(zero_init=False), l2=1.0, imitation=0.0), agent(residual(zero_init=False), imitation=1.0)
    for other in others:
        other.policy.load_state_dict(plain.state_dict())
        before = copy.deepcopy(other.policy.actor.state_dict())
        other._update_actor(batch)
        assert any(not torch.equal(v, before[k]) for k, v in other.policy.actor.state_dict().items())


@pytest.mark.parametrize(("critics", "subset"), [(1, 1), (3, 3), (3, 1)])
def test_the_target_is_one_step_of_td(residual: Build, agent: Build, critics: int, subset: int) -> None:
    """r + discount * min over the subset; a single critic is its own minimum, and a whole subset draws nothing."""
    limits = dict(value_low=-9.0, value_high=9.0, target_noise=0.0)
    learner = agent(residual(), critics=critics, subset=subset, **limits)
    batch, policy, state = batch_of(), learner.policy, learner.rng.get_state()
    after = {name.removeprefix("next."): value for name, value in batch.items() if name.startswith("next.")}
    with torch.no_grad():
        following = policy.transform(policy.actor.mean(policy.actor_features(after)), after)
        values = learner.target.value(policy.features(after), following)
        losses = []
        for member in [None] if subset == critics else range(critics):
            worst = values.amin(0) if member is None else values[member]
            error = learner.critic.value(policy.features(batch), batch["action"])
            error = error - batch["reward"] - batch["discount"] * worst
            losses.append(float(error.square().mean(1).sum()))
    loss = float(learner.update(batch, LearningPhase.WARMUP)["critic/loss"])
    assert any(loss == pytest.approx(wanted, rel=1e-5) for wanted in losses)
    if critics == subset == 1:
        shape = (len(batch["action"]), 2)
        expected = torch.Generator()
        expected.set_state(state)
        torch.randn(shape, generator=expected)  # the smoothing noise, drawn although its size is 0
        assert torch.equal(learner.rng.get_state(), expected.get_state())


def test_when_annealing_is_finished_the_update_is_td(residual: Build, agent: Build) -> None:
    """Before, the loss is the expectile's; then the same numbers come to the same networks bit for bit."""
    plain, other = (agent(residual(std=None), optimism=tau, anneal_updates=5) for tau in (0.5, 0.9))
    other.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert plain.update(batch_of())["critic/loss"] != other.update(batch_of())["critic/loss"]
    other.load_state_dict(copy.deepcopy(plain.state_dict()))
    plain.updates.critic = other.updates.critic = 5
    for seed in range(4):
        assert plain.update(batch_of(seed=seed)) == other.update(batch_of(seed=seed))
    assert fingerprint(plain.policy) == fingerprint(other.policy)
    assert all(torch.equal(v, other.critic.state_dict()[k]) for k, v in plain.critic.state_dict().items())


def test_an_expectile_of_a_half_is_half_the_squared_error() -> None:
    error = torch.randn(100, generator=rng())
    assert torch.equal(2 * expectile_error(error, 0.5), error.square())
    assert [annealed(0.9, done, 10) for done in (0, 5, 10, 99)] == pytest.approx([0.9, 0.7, 0.5, 0.5])
    grid = torch.linspace(-1, 1, 2001)
    losses = expectile_error(torch.tensor([-0.5, 0.5])[:, None] - grid, 0.9).mean(0)
    assert grid[losses.argmin()].item() == pytest.approx(0.4, abs=2e-3), "0.9 (0.5 - x) = 0.1 (x + 0.5)"


@pytest.mark.parametrize("history", [1, 3])
def test_ratios_are_1_before_the_first_step(history: int) -> None:
    torch.manual_seed(0)
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(16,), history=history))
    ppo = PPO(policy, 1, PPOConfig(hidden=(16,), epochs=1, minibatches=1), 0)
    generator = rng()
    for _ in range(2):  # the second time with normalizers that have seen something
        rows, observation = [], {}
        for _ in range(6):
            observation = {
                "observation.state": 3 + torch.randn(8, 4, generator=generator),
                "observation.environment_state": torch.randn(8, 1, generator=generator),
            }
            rows.append(ppo.act(observation, generator)[1])
        rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        no = torch.zeros(6, 8, dtype=torch.bool)
        rollout |= {"reward": torch.randn(6, 8, generator=generator), "terminated": no, "done": no}
        metrics = ppo.update(ppo.assess(rollout, observation, []))
        assert metrics["ppo/kl"] == pytest.approx(0, abs=1e-6) and metrics["ppo/clipped"] == 0
        assert metrics["ppo/surrogate"] == pytest.approx(0, abs=1e-5), "the mean of normalized advantages"
