"""Real-time chunking: frozen actions, guidance weights and prefixes."""

import math

import pytest
import torch
from torch import Tensor

from policies.base import Observation, Prefix, Size
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.execution import ChunkExecutor, Execution
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.chunks import ChunkPolicy, guidance_term

KINDS = ["flow", "sample", "epsilon"]


def make(kind: str) -> ChunkPolicy:
    torch.manual_seed(0)
    if kind == "flow":
        return FlowPolicy(Size(3, 2), FlowConfig(hidden=32))
    return DiffusionPolicy(Size(3, 2), DiffusionConfig(hidden=32, prediction=kind))  # type: ignore[arg-type]


def observation(rows: int, seed: int = 0) -> Observation:
    return {"observation.state": torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))}


def play(policy: ChunkPolicy, execution: Execution, steps: int = 30, rows: int = 3) -> Tensor:
    runner = ChunkExecutor(policy, rows, execution, lambda: torch.zeros(rows, 2))
    rng, actions = torch.Generator().manual_seed(1), []
    for step in range(steps):
        if step == 13:
            runner.reset(torch.tensor([1]))
        actions.append(runner.act(observation(rows, step), rng))
    return torch.stack(actions)


def prefix_of(rows: int, weights: Tensor, guidance: float = 5.0) -> Prefix:
    actions = torch.rand(rows, 16, 2, generator=torch.Generator().manual_seed(7)) * 1.6 - 0.8
    return Prefix(actions, weights.expand(rows, -1), guidance)


@pytest.mark.parametrize("kind", KINDS)
def test_without_delay_and_guidance_it_equals_receding_horizon(kind: str) -> None:
    policy = make(kind)
    expected = play(policy, Execution())
    assert torch.equal(play(policy, Execution("realtime", guidance=0.0)), expected)
    assert torch.equal(play(policy, Execution("asynchronous")), expected)
    assert not torch.equal(play(policy, Execution("realtime")), expected), "guidance has an effect"
    noise = policy.noise(2, torch.Generator().manual_seed(3))
    mixed = Prefix(prefix_of(2, torch.zeros(16)).actions, torch.stack([torch.zeros(16), torch.linspace(1, 0, 16)]), 5.0)
    plain, guided = policy.base(observation(2), noise), policy.base(observation(2), noise, mixed)
    assert torch.equal(guided[0], plain[0]) and not torch.equal(guided[1], plain[1]), "weights of 0 do not guide"


@pytest.mark.parametrize("guidance", [0.0, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_actions_are_unchanged(kind: str, guidance: float) -> None:
    policy = make(kind)
    weights = torch.cat([torch.ones(6), torch.linspace(0.9, 0.0, 10)])
    prefix = prefix_of(4, weights, guidance)
    chunk = policy.base(observation(4), policy.noise(4, torch.Generator().manual_seed(3)), prefix)
    assert (chunk[:, :6] - prefix.actions[:, :6]).abs().max() <= 1e-6
    assert chunk.abs().max() <= 1 and not chunk.requires_grad


@pytest.mark.parametrize("kind", ["flow", "sample"])
def test_guidance_makes_the_chunk_follow_frozen_actions(kind: str) -> None:
    """The policy is trained on constant chunks in [-0.8, 0.8]."""
    policy = make(kind)
    rng, optimizer = torch.Generator().manual_seed(0), torch.optim.Adam(policy.parameters(), 3e-3)
    for _ in range(400):
        chunk = (1.6 * torch.rand(128, 1, 2, generator=rng) - 0.8).expand(-1, 16, -1)
        loss = policy.loss({"observation.state": torch.zeros(128, 3)}, chunk, rng).mean()  # type: ignore[operator]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rows, blind = 200, {"observation.state": torch.zeros(200, 3)}
    noise = policy.noise(rows, rng)
    frozen = torch.cat([torch.ones(6), torch.zeros(10)]).expand(rows, -1)
    before = (1.6 * torch.rand(rows, 1, 2, generator=rng) - 0.8).expand(-1, 16, -1)
    follows = []
    for guidance in (0.0, 5.0):
        rest = policy.base(blind, noise, Prefix(before, frozen, guidance))[:, 6:].mean(1)
        follows.append(float((rest - before[:, 0]).square().mean() / before.square().mean()))
    assert follows[0] > 1.0 and follows[1] < 0.4 * follows[0], follows


def test_guidance_of_a_linear_denoiser_equals_the_equations() -> None:
    """The denoiser multiplies by a constant, so its Jacobian is known."""
    noisy = torch.tensor([[[0.5, -0.5]]])
    prefix = Prefix(torch.tensor([[[0.2, 0.2]]]), torch.tensor([[0.5]]), 5.0)
    for alpha, sigma in ((0.5, 0.5), (0.1, 0.9), (0.6, 0.8)):
        weight = min(5 * sigma, (alpha**2 + sigma**2) / alpha)
        expected = weight * 0.7 * 0.5 * (0.2 - 0.7 * noisy)
        assert torch.allclose(guidance_term(lambda x: 0.7 * x, noisy, alpha, sigma, prefix), expected)


@pytest.mark.parametrize("kind", ["flow", "sample"])
def test_prefix_has_the_actions_executed_during_inference(kind: str) -> None:
    """Weights are 1 for the delay, then decay to 0 at the end of the previous chunk."""
    policy, delay, given = make(kind), 3, []
    plain = policy.base

    def base(observation: Observation, noise: Tensor, prefix: Prefix | None = None) -> Tensor:
        given.append(prefix)
        return plain(observation, noise, prefix)

    policy.base = base  # type: ignore[method-assign]
    executed = play(policy, Execution("realtime", delay), steps=13, rows=1)[:, 0]
    assert given[0] is None, "no previous chunk"
    prefix = given[1]
    assert prefix is not None
    assert torch.equal(prefix.actions[0, :delay], executed[8:11]), "inferred from period 8 to 11"
    c = (8 - torch.arange(delay, 16.0)).clamp_min(0) / (8 - delay + 1)  # 8 actions are left
    expected = torch.cat([torch.ones(delay), c * c.expm1() / (math.e - 1)])
    assert torch.allclose(prefix.weights[0], expected, atol=1e-6)
    chunk = plain(observation(1, 8), policy.noise(1, torch.Generator()), prefix)
    assert (chunk[0, :delay] - executed[8:11]).abs().max() <= 1e-6
