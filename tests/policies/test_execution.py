"""Chunk execution: receding, with delays against a reference implementation, and with inference in a thread."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policies.base import Chunk, Normalizer, Observation, Policy, Prefix, Size
from policies.execution import ChunkExecutor, Execution, InferenceHung, warm_up
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.flow import FlowConfig, FlowPolicy
from policies.residual import ResidualPolicy
from robot_rl.util.errors import ConfigError

HELD = -1.0


class Clock:
    """Policy whose actions are (control period of the observation, index in the chunk); not a torch module."""

    def __init__(self, horizon: int = 8, execute: int = 4, start: int = 0, period: float = 0.0):
        self.horizon, self.execute, self.start, self.period = horizon, execute, start, period
        self.resets: list[object] = []

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        step = observation["observation.state"]
        index = torch.arange(self.horizon).expand(len(step), -1)
        return Chunk(torch.stack([step.expand_as(index), index], -1), self.start, self.period)

    def reset(self, ids: Tensor | None = None) -> None:
        self.resets.append(ids)


def hold_of(rows: int) -> Callable[[], Tensor]:
    return lambda: torch.full((rows, 2), HELD)


def at(step: int, rows: int = 1) -> Observation:
    return {"observation.state": torch.full((rows, 1), float(step))}


def reference(mode: str, horizon: int, execute: int, delay: int, resets: list[bool]) -> list[tuple[float, float]]:
    """Return (observation period, index) of the actions of one environment, for a delay in control periods."""
    chunk: int | None = None  # period of the chunk's action 0
    seen, requested, done = 0, -1, []
    for now, reset in enumerate(resets):
        if reset:
            chunk, requested = None, -1
        every = execute if mode == "receding" else max(1, min(execute, horizon - delay))
        for _ in range(2):  # a chunk may arrive and expire in one period
            if requested >= 0 and now - requested >= delay:
                chunk, seen, requested = (now if mode == "receding" else requested), requested, -1
            if requested < 0 and (chunk is None or now - chunk >= every):
                requested = now
        index = horizon if chunk is None else now - chunk
        available = index < (execute if mode == "receding" else horizon)
        done.append((float(seen), float(index)) if available else (HELD, HELD))
    return done


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_execution_equals_a_reference_implementation(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["receding", "asynchronous"]))
    horizon = data.draw(st.integers(2, 9))
    execute, delay = data.draw(st.integers(1, horizon)), data.draw(st.integers(0, horizon - 1))
    resets = data.draw(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=12, max_size=30))
    runner = ChunkExecutor(Clock(horizon, execute), 3, Execution(mode, delay), hold_of(3))
    executed = []
    for step, now in enumerate(resets):
        if any(now):
            runner.reset(torch.tensor(now).nonzero().squeeze(-1))
        executed.append(runner.act(at(step, 3), torch.Generator()))
        assert torch.equal(runner.idle, executed[-1][:, 0] == HELD)
    for row in range(3):
        actions = [tuple(action[row].tolist()) for action in executed]
        assert actions == reference(mode, horizon, execute, delay, [now[row] for now in resets])


def check(executed: list[tuple[float, float]], resets: list[bool]) -> None:
    """Check that no action runs twice, late, or after a reset, and that observations are in order."""
    moved = [(now, seen, index) for now, (seen, index) in enumerate(executed) if seen != HELD]
    assert len({(seen, index) for _, seen, index in moved}) == len(moved)
    assert all(seen + index == now for now, seen, index in moved), "each action in its period"
    observed = [seen for _, seen, _ in moved]
    assert observed == sorted(observed)
    for now, seen, _ in moved:
        assert not any(resets[int(seen) + 1 : now + 1]), "no reset since the observation"


class Gated(Clock):
    """Clock whose inferences wait for the test."""

    def __init__(self, *arguments: int):
        super().__init__(*arguments)
        self.gate = threading.Semaphore(0)

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        assert self.gate.acquire(timeout=30)
        return super().infer(observation, rng, prefix)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_background_inference_executes_no_action_twice_or_late(data: st.DataObject) -> None:
    horizon = data.draw(st.integers(2, 9))
    policy = Gated(horizon, data.draw(st.integers(1, horizon)))
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", background=True), hold_of(1))
    steps = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=10, max_size=40))
    executed: list[tuple[float, float]] = []
    requested: list[Future[Chunk]] = []
    for step, (answers, reset) in enumerate(steps):
        if reset:
            runner.reset()
        if answers and runner._future is not None:
            policy.gate.release(len(requested))  # including inferences from before a reset
            wait(requested)
            requested.clear()
        before = runner._future
        action = runner.act(at(step), torch.Generator())[0]
        executed.append((float(action[0]), float(action[1])))
        if runner._future is not None and runner._future is not before:
            requested.append(runner._future)
    check(executed, [reset for _, reset in steps])
    policy.gate.release(max(1, len(requested)))


def test_hanging_and_failing_inference_raises_without_blocking() -> None:
    policy = Gated()
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", background=True), hold_of(1))
    for step in range(5):
        assert runner.act(at(step), torch.Generator())[0, 0] == HELD
    runner.execution = Execution("asynchronous", background=True, limit=1e-9)
    with pytest.raises(InferenceHung, match="has not answered"):
        runner.act(at(5), torch.Generator())
    policy.gate.release()

    class Dying(Clock):
        def infer(self, *_: Any) -> Chunk:
            raise RuntimeError("the model's process is gone")

    runner = ChunkExecutor(Dying(), 1, Execution(background=True, patience=30), hold_of(1))
    with pytest.raises(RuntimeError, match="process is gone"):
        runner.act(at(0), torch.Generator())


def test_reset_waits_for_the_inference_in_flight() -> None:
    policy = Gated()
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", background=True, patience=0), hold_of(1))
    runner.act(at(0), torch.Generator())
    runner.reset()
    assert policy.resets == [], "the inference may be using the policy's state"
    runner.act(at(1), torch.Generator())
    policy.gate.release(2)
    assert runner._future is not None
    wait([runner._future])
    assert policy.resets == [None]
    assert runner.act(at(2), torch.Generator()).tolist() == [[1.0, 1.0]], "from the observation after the reset"


def test_fast_background_inference_is_executed_in_the_same_period() -> None:
    runner = ChunkExecutor(Clock(), 1, Execution(background=True, patience=30), hold_of(1))
    executed = [runner.act(at(step), torch.Generator())[0].tolist() for step in range(6)]
    assert executed == [[0, 0], [0, 1], [0, 2], [0, 3], [4, 0], [4, 1]]


def test_ensemble_averages_arrived_chunks_with_exponential_weights() -> None:
    runner = ChunkExecutor(Clock(3, 3), 2, Execution("ensemble", decay=0.5), hold_of(2))
    weight = torch.exp(-0.5 * torch.arange(3.0))
    for step in range(6):
        if step == 4:
            runner.reset(torch.tensor([1]))
        action = runner.act(at(step, 2), torch.Generator())
        for row in range(2):
            first = 4 if row and step >= 4 else 0
            seen = torch.arange(max(first, step - 2), step + 1.0)  # the oldest chunk has the largest weight
            share = weight[: len(seen)] / weight[: len(seen)].sum()
            assert action[row].tolist() == pytest.approx([float(share @ seen), float(share @ (step - seen))])
    runner = ChunkExecutor(Clock(6, 6), 1, Execution("ensemble", delay=2, decay=0.0), hold_of(1))
    seen = [runner.act(at(step), torch.Generator())[0, 0].item() for step in range(9)]
    # Inferences run one at a time, from periods 0, 2, 4 and 6; the first chunk ends with period 5.
    assert seen == [HELD, HELD, 0, 0, 1, 1, 3, 3, 5]


def test_chunk_start_and_period_are_checked() -> None:
    runner = ChunkExecutor(Clock(start=-1), 1)
    assert [runner.act(at(k), torch.Generator())[0, 1].item() for k in range(4)] == [1, 2, 3, 1]
    with pytest.raises(ValueError, match="begins 2 control periods after"):
        ChunkExecutor(Clock(start=2), 1).act(at(0), torch.Generator())
    with pytest.raises(ConfigError, match=r"last 0.1 s, a control period here 0.05 s"):
        ChunkExecutor(Clock(period=0.1), 1, Execution(period=0.05)).act(at(0), torch.Generator())


def test_invalid_executions_are_refused() -> None:
    with pytest.raises(ConfigError, match="takes 8 control periods and a chunk holds 8"):
        ChunkExecutor(Clock(), 1, Execution("asynchronous", 8), hold_of(1))
    with pytest.raises(ConfigError, match="takes 1 control periods and a chunk holds 1"):
        ChunkExecutor(Clock(1, 1), 1, Execution("asynchronous", background=True), hold_of(1))
    with pytest.raises(ConfigError, match="samples chunks"):
        ChunkExecutor(Clock(), 1, Execution("realtime"), hold_of(1))
    with pytest.raises(ValueError, match="needs `hold_action`"):
        ChunkExecutor(Clock(), 1, Execution(delay=1))
    for execute in (9, -1):
        with pytest.raises(ValueError, match=f"execute is {execute}; a chunk holds 8"):
            ChunkExecutor(Clock(), 1, execute=execute)


def test_residual_acts_every_period_while_the_base_infers(residual: Callable[..., ResidualPolicy]) -> None:
    policy = residual(zero_init=True)
    held = torch.full((2, policy.size.action), 0.25)
    runner = ChunkExecutor(policy, 2, Execution(delay=2), lambda: held)
    rng, observation = torch.Generator().manual_seed(0), {"observation.state": torch.zeros(2, 3)}
    first, second, third = (runner.act(observation, rng) for _ in range(3))
    assert torch.equal(first, held) and torch.equal(second, held) and not torch.equal(third, held)
    with pytest.raises(ConfigError, match="come too"):
        ChunkExecutor(policy, 2, Execution("asynchronous", 99), lambda: held)


def test_resume_repeats_the_inference_in_flight() -> None:
    torch.manual_seed(0)
    policy = FlowPolicy(Size(1, 2), FlowConfig(hidden=16, horizon=8, execute=4))
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", 2), hold_of(1))
    rng = torch.Generator().manual_seed(0)
    for step in range(5):  # an inference started in period 4
        runner.act(at(step), rng)
    other = ChunkExecutor(policy, 1, Execution("asynchronous", 2), hold_of(1))
    other.load_state_dict(runner.state_dict())
    assert torch.equal(other.act(at(5), rng), runner.act(at(5), rng)), "the previous chunk continues"
    assert other.age.item() == 1, "the next inference has started"


def test_warm_up_does_not_change_later_actions(residual: Callable[..., ResidualPolicy]) -> None:
    """Actions are bit-identical, for a policy that samples and for a policy with state."""
    torch.manual_seed(0)
    flow = FlowPolicy(Size(3, 2), FlowConfig(hidden=16))
    for policy in (flow, residual(zero_init=False)):
        actions = []
        for warm in (False, True):
            if warm:
                warm_up(policy, {"observation.state": torch.zeros(1, 3)}, Execution("realtime"))
            runner, rng = ChunkExecutor(policy, 2), torch.Generator().manual_seed(0)
            runner.reset()
            states = torch.Generator().manual_seed(1)
            seen = [{"observation.state": torch.randn(2, 3, generator=states)} for _ in range(10)]
            actions.append(torch.stack([runner.act(observation, rng) for observation in seen]))
        assert torch.equal(*actions)


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
