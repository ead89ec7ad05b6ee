"""Residual policies: equal to the base at first, clipped sum, unchanged base in training."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from policies.base import Policy
from policies.execution import ChunkExecutor

Build = Callable[..., Any]


def rollout(policy: Policy, steps: int = 11, rows: int = 3) -> torch.Tensor:
    """Return actions for a fixed sequence of observations, with one environment reset at step 5."""
    rng, states = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    runner = ChunkExecutor(policy, rows)
    runner.reset()
    actions = []
    for t in range(steps):
        if t == 5:
            runner.reset(torch.tensor([1]))
        actions.append(runner.act({"observation.state": torch.randn(rows, 3, generator=states)}, rng))
    return torch.stack(actions)


def fingerprint(policy: Policy) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in policy.state_dict().values())).hexdigest()


@pytest.mark.parametrize(("scale", "zero_init"), [(0.0, False), (0.5, True)], ids=["scale 0", "zero init"])
def test_zero_correction_equals_the_base(diffusion: Build, residual: Build, scale: float, zero_init: bool) -> None:
    base = diffusion()
    expected = rollout(base)
    policy = residual(scale=scale, zero_init=zero_init, base=base)
    assert torch.equal(rollout(policy), expected)
    assert len(expected.unique(dim=0)) > 4, "the base's actions vary"


def test_training_does_not_change_the_base(residual: Build, agent: Build) -> None:
    policy = residual()
    base, whole = fingerprint(policy.base), fingerprint(policy)
    learner = agent(policy)
    rng = torch.Generator().manual_seed(0)
    for _ in range(6):
        sizes = {"observation.state": 3, "next.observation.state": 3, "action": 2}
        random = {name: torch.rand(8, size, generator=rng) for name, size in sizes.items()}
        random |= {"base": random["action"], "next.base": random["action"]}
        learner.update(random | {"reward": torch.rand(8, generator=rng), "discount": torch.full((8,), 0.9)})
    assert fingerprint(policy.base) == base and fingerprint(policy) != whole
    assert not policy.base.training and not any(p.requires_grad for p in policy.base.parameters())


def test_action_is_the_clipped_sum_and_invert_returns_the_nearest_actor_output(residual: Build) -> None:
    policy = residual(scale=0.5, zero_init=False)
    torch.nn.init.normal_(policy.actor.trunk[-1].weight)
    observation = {"observation.state": torch.randn(50, 3)}
    base = policy.base.act(observation, torch.Generator().manual_seed(0))[:, 0]
    action = policy.act(observation, torch.Generator().manual_seed(0))[:, 0]
    correction = policy.actor.mean(torch.cat([policy.normalizer(observation["observation.state"]), base], -1))
    assert torch.equal(action, (base + 0.5 * correction).clamp(-1, 1))
    assert ((action - base).abs() <= 0.5 + 1e-6).all()
    assert policy.transform(torch.ones(1, 1), {"base": torch.tensor([[0.9]])}).item() == 1.0
    policy, base = residual(scale=0.5), torch.tensor([[0.2, -0.4]])
    u = torch.tensor([[0.6, -0.9]])
    action = policy.transform(u, {"base": base})
    torch.testing.assert_close(policy.invert(action, {"base": base}), u)
    assert policy.invert(torch.tensor([[0.9, 1.0]]), {"base": base}).tolist() == [[1.0, 1.0]]
    assert residual(scale=0.0).invert(action, {"base": base}) is None


def test_base_infers_once_per_chunk_and_after_a_reset(residual: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = residual()
    rows_inferred: list[int] = []
    infer = policy.base.infer
    monkeypatch.setattr(
        policy.base, "infer", lambda o, g, p: rows_inferred.append(len(o["observation.state"])) or infer(o, g, p)
    )
    rollout(policy, steps=8, rows=3)  # execute = 2; environment 1 is reset before step 5
    assert rows_inferred == [3, 3, 3, 1, 2, 1]


def test_residual_uses_the_bases_normalizer_for_any_number_of_environments(diffusion: Build, residual: Build) -> None:
    base = diffusion()
    base.normalizer.fit(5 + torch.randn(100, 3))
    policy = residual(base=base)
    assert torch.equal(policy.normalizer.mean, base.normalizer.mean)
    assert torch.equal(policy.normalizer.std, base.normalizer.std)
    for rows in (2, 5, 2):
        action = policy.act({"observation.state": torch.zeros(rows, 3)}, torch.Generator().manual_seed(0))
        assert action.shape == (rows, 1, 2)
