"""Receding execution of chunks, `peek`, and normalizers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Normalizer, Observation, Policy, Size
from policies.execution import ChunkExecutor
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy


class Counter(Policy):
    """Policy whose k-th call returns chunks [10 k, 10 k + 1, ...] plus 1000 times the row's observation."""

    def __init__(self, horizon: int = 4, execute: int = 4):
        super().__init__()
        self.horizon, self.execute = horizon, execute
        self.calls: list[list[float]] = []
        self.resets: list[object] = []

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        state = observation["observation.state"][:, 0]
        self.calls.append(state.tolist())
        chunk = 10.0 * len(self.calls) + torch.arange(self.horizon)
        return (1000 * state[:, None] + chunk)[..., None]

    def reset(self, ids: Tensor | None = None) -> None:
        self.resets.append(None if ids is None else ids.tolist())


def play(runner: ChunkExecutor, steps: int) -> list[list[float]]:
    n = len(runner.used)
    observation = {"observation.state": torch.arange(n).float()[:, None]}
    return [(runner.act(observation, torch.Generator())[:, 0] % 1000).tolist() for _ in range(steps)]


def test_only_reset_environments_infer_and_the_others_continue() -> None:
    policy = Counter()
    runner = ChunkExecutor(policy, 3)
    assert play(runner, 2) == [[10, 10, 10], [11, 11, 11]]
    runner.reset(torch.tensor([1]))
    assert play(runner, 4) == [[12, 20, 12], [13, 21, 13], [30, 22, 30], [31, 23, 31]]
    assert policy.calls == [[0, 1, 2], [1], [0, 2]], "rows belong to their environments"
    runner.reset()
    assert play(runner, 1) == [[40, 40, 40]]
    assert policy.resets == [[1], None]


def test_peek_returns_the_next_action_without_advancing() -> None:
    runner = ChunkExecutor(Counter(), 3, execute=2)
    play(runner, 1)
    runner.reset(torch.tensor([2]))
    before = copy.deepcopy(runner.state_dict())
    observation = {"observation.state": torch.arange(3.0)[:, None]}
    seen = runner.peek(observation, torch.tensor([True, False, True]), torch.Generator())[:, 0]
    assert (seen % 1000).tolist() == [11, 0, 20]  # continued, not requested, inferred
    assert torch.equal(runner.state_dict()["used"], before["used"])
    assert torch.equal(runner.state_dict()["chunks"], before["chunks"])
    assert play(runner, 1) == [[11, 11, 30]]


@pytest.fixture(params=["feedforward", "onnx", "residual"])
def recurrent(request: pytest.FixtureRequest, residual: Callable[..., Any]) -> Policy:
    """Policy whose actions depend on earlier observations."""
    if request.param == "residual":
        made: Policy = residual(zero_init=False)
        return made
    torch.manual_seed(0)
    policy = FeedforwardPolicy(Size(3, 2), FeedforwardConfig(hidden=(16,), history=3))
    torch.nn.init.normal_(policy.actor[-1].weight, std=0.1)
    if request.param == "feedforward":
        return policy
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from policies.export import build_graph
    from policies.onnx import OnnxPolicy

    return OnnxPolicy(build_graph(policy, {}), policy)


def test_peek_does_not_change_the_policys_state(recurrent: Policy) -> None:
    """For all or some environments, within an episode and at its start."""
    states = torch.Generator().manual_seed(2)
    path = [{"observation.state": torch.randn(3, 3, generator=states)} for _ in range(9)]
    every, some = torch.tensor([True] * 3), torch.tensor([True, False, True])
    runs = []
    for peeks in (False, True):
        runner, rng, actions = ChunkExecutor(recurrent, 3), torch.Generator().manual_seed(1), []
        runner.reset()
        for k, observation in enumerate(path):
            if k == 5:
                runner.reset(torch.tensor([1]))
            if peeks and k:
                now = rng.get_state()
                other = runner.peek(path[-k], some, rng)
                assert not other[1].any()
                rng.set_state(now)
                seen = runner.peek(observation, every, rng)
                rng.set_state(now)
            actions.append(runner.act(observation, rng))
            if peeks and k:
                assert torch.equal(seen, actions[-1])
        runs.append(torch.stack(actions))
    assert torch.equal(*runs)
    assert len(runs[0].flatten(0, 1).unique(dim=0)) == 27, "actions depend on observations"


def test_returned_actions_are_not_overwritten_by_the_next_chunk() -> None:
    runner = ChunkExecutor(Counter(), 1, execute=1)
    observation = {"observation.state": torch.zeros(1, 1)}
    first = runner.act(observation, torch.Generator())
    kept = first.clone()
    runner.act(observation, torch.Generator())
    assert torch.equal(first, kept)


def test_resumed_execution_equals_uninterrupted() -> None:
    runner, other = ChunkExecutor(Counter(), 2), ChunkExecutor(Counter(), 2)
    play(runner, 2)
    runner.reset(torch.tensor([0]))
    other.policy.calls = list(runner.policy.calls)
    other.load_state_dict(copy.deepcopy(runner.state_dict()))
    assert play(runner, 5) == play(other, 5)


@pytest.mark.parametrize("execute", [5, -1])
def test_execute_beyond_the_horizon_is_refused(execute: int) -> None:
    with pytest.raises(ValueError, match=f"execute is {execute}; a chunk holds 4"):
        ChunkExecutor(Counter(), 1, execute=execute)


def test_normalizer_standardizes_clips_and_handles_constant_columns() -> None:
    data = torch.randn(500, 3) * torch.tensor([2.0, 0.1, 0.0]) + torch.tensor([1.0, -3.0, 7.0])
    normalizer = Normalizer(3)
    normalizer.fit(data)
    out = normalizer(data)
    assert torch.allclose(out.mean(0), torch.zeros(3), atol=0.05)
    assert torch.allclose(out[:, :2].std(0), torch.ones(2), atol=0.05)
    assert normalizer(torch.full((1, 3), 1e6)).max() == 5 and normalizer(torch.full((1, 3), -1e6)).min() == -5
    other = Normalizer(3)
    other.load_state_dict(normalizer.state_dict())
    assert torch.equal(other(data), out)
