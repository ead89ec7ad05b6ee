"""Chunks in time: against a reference implementation for one environment, and with inference in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from multiprocessing import Pipe
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policies.base import Chunk, Observation, Prefix, Size
from policies.execution import ChunkExecutor, Execution, InferenceHung, warm_up
from policies.flow import FlowConfig, FlowPolicy
from policies.residual import ResidualPolicy
from robot_rl.util.errors import ConfigError

HELD = -1.0


class Clock:
    """Answers with its observation's control period, and the index in the chunk: no torch module."""

    def __init__(self, horizon: int = 8, execute: int = 4, start: int = 0, period: float = 0.0):
        self.horizon, self.execute, self.start, self.period = horizon, execute, start, period
        self.forgot: list[object] = []

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        step = observation["observation.state"]
        index = torch.arange(self.horizon).expand(len(step), -1)
        return Chunk(torch.stack([step.expand_as(index), index], -1), self.start, self.period)

    def reset(self, ids: Tensor | None = None) -> None:
        self.forgot.append(ids)


def still_of(rows: int) -> Callable[[], Tensor]:
    return lambda: torch.full((rows, 2), HELD)


def at(step: int, rows: int = 1) -> Observation:
    return {"observation.state": torch.full((rows, 1), float(step))}


def account(mode: str, horizon: int, execute: int, delay: int, resets: list[bool]) -> list[tuple[float, float]]:
    """What one environment executes: period of the observation and index, for a delay of so many periods."""
    chunk: int | None = None  # period at which its action 0 would run, and its observation
    seen, asked, done = 0, -1, []
    for now, reset in enumerate(resets):
        if reset:
            chunk, asked = None, -1
        every = execute if mode == "receding" else max(1, min(execute, horizon - delay))
        for _ in range(2):  # what comes in a period may already be used up in it, and the next one be there at once
            if asked >= 0 and now - asked >= delay:
                chunk, seen, asked = (now if mode == "receding" else asked), asked, -1
            if asked < 0 and (chunk is None or now - chunk >= every):
                asked = now
        index = horizon if chunk is None else now - chunk
        there = index < (execute if mode == "receding" else horizon)
        done.append((float(seen), float(index)) if there else (HELD, HELD))
    return done


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_environment_executes_what_a_plain_account_says(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["receding", "asynchronous"]))
    horizon = data.draw(st.integers(2, 9))
    execute, delay = data.draw(st.integers(1, horizon)), data.draw(st.integers(0, horizon - 1))
    resets = data.draw(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=12, max_size=30))
    runner = ChunkExecutor(Clock(horizon, execute), 3, Execution(mode, delay), still_of(3))
    executed = []
    for step, now in enumerate(resets):
        if any(now):
            runner.reset(torch.tensor(now).nonzero().squeeze(-1))
        executed.append(runner.act(at(step, 3), torch.Generator()))
        assert torch.equal(runner.idle, executed[-1][:, 0] == HELD)
    for row in range(3):
        mine = [tuple(action[row].tolist()) for action in executed]
        assert mine == account(mode, horizon, execute, delay, [now[row] for now in resets])


def check(executed: list[tuple[float, float]], resets: list[bool]) -> None:
    """No action twice, none late, none from before a reset; observations in their order."""
    moved = [(now, seen, index) for now, (seen, index) in enumerate(executed) if seen != HELD]
    assert len({(seen, index) for _, seen, index in moved}) == len(moved)
    assert all(seen + index == now for now, seen, index in moved), "each in the period that it is for"
    observed = [seen for _, seen, _ in moved]
    assert observed == sorted(observed)
    for now, seen, _ in moved:
        assert not any(resets[int(seen) + 1 : now + 1]), "a reset came between"


class Gated(Clock):
    """A clock whose answers come when the test lets them."""

    def __init__(self, *arguments: int):
        super().__init__(*arguments)
        self.gate = threading.Semaphore(0)

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        assert self.gate.acquire(timeout=30)
        return super().infer(observation, rng, prefix)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_with_inference_in_a_thread_nothing_runs_twice_or_late(data: st.DataObject) -> None:
    horizon = data.draw(st.integers(2, 9))
    policy = Gated(horizon, data.draw(st.integers(1, horizon)))
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", background=True), still_of(1))
    steps = data.draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=10, max_size=40))
    executed: list[tuple[float, float]] = []
    asked: list[Future[Chunk]] = []
    for step, (answers, handed_back) in enumerate(steps):
        if handed_back:
            runner.reset()
        if answers and runner._future is not None:
            policy.gate.release(len(asked))  # what a reset left behind as well
            wait(asked)
            asked.clear()
        before = runner._future
        action = runner.act(at(step), torch.Generator())[0]
        executed.append((float(action[0]), float(action[1])))
        if runner._future is not None and runner._future is not before:
            asked.append(runner._future)
    check(executed, [handed_back for _, handed_back in steps])
    policy.gate.release(max(1, len(asked)))


def test_the_caller_never_waits_and_a_dead_or_hanging_policy_is_told() -> None:
    policy = Gated()
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", background=True), still_of(1))
    for step in range(5):
        assert runner.act(at(step), torch.Generator())[0, 0] == HELD
    runner.execution = Execution("asynchronous", background=True, limit=1e-9)
    with pytest.raises(InferenceHung, match="has not answered"):
        runner.act(at(5), torch.Generator())
    policy.gate.release()

    class Dying(Clock):
        def infer(self, *_: Any) -> Chunk:
            raise RuntimeError("the model's process is gone")

    runner = ChunkExecutor(Dying(), 1, Execution(background=True, patience=30), still_of(1))
    with pytest.raises(RuntimeError, match="process is gone"):
        runner.act(at(0), torch.Generator())


def test_a_reset_waits_for_the_policy_to_finish_what_it_was_at() -> None:
    policy = Gated()
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", background=True, patience=0), still_of(1))
    runner.act(at(0), torch.Generator())
    runner.reset()
    assert policy.forgot == [], "it may read its memory just now"
    runner.act(at(1), torch.Generator())
    policy.gate.release(2)
    assert runner._future is not None
    wait([runner._future])
    assert policy.forgot == [None]
    assert runner.act(at(2), torch.Generator()).tolist() == [[1.0, 1.0]], "of the observation after the reset"


def test_a_fast_policy_in_the_background_is_executed_in_the_same_period() -> None:
    runner = ChunkExecutor(Clock(), 1, Execution(background=True, patience=30), still_of(1))
    executed = [runner.act(at(step), torch.Generator())[0].tolist() for step in range(6)]
    assert executed == [[0, 0], [0, 1], [0, 2], [0, 3], [4, 0], [4, 1]]


def test_ensembles_average_all_chunks_with_exponential_weights() -> None:
    runner = ChunkExecutor(Clock(3, 3), 2, Execution("ensemble", decay=0.5), still_of(2))
    weight = torch.exp(-0.5 * torch.arange(3.0))
    for step in range(6):
        if step == 4:
            runner.reset(torch.tensor([1]))
        action = runner.act(at(step, 2), torch.Generator())
        for row in range(2):
            first = 4 if row and step >= 4 else 0
            seen = torch.arange(max(first, step - 2), step + 1.0)  # the oldest has the largest weight
            share = weight[: len(seen)] / weight[: len(seen)].sum()
            assert action[row].tolist() == pytest.approx([float(share @ seen), float(share @ (step - seen))])


def test_a_delayed_ensemble_averages_what_has_come() -> None:
    runner = ChunkExecutor(Clock(6, 6), 1, Execution("ensemble", delay=2, decay=0.0), still_of(1))
    seen = [runner.act(at(step), torch.Generator())[0, 0].item() for step in range(9)]
    # Inferences begin in periods 0, 2, 4 and 6, for one runs at a time; the chunk of 0 ends with period 5.
    assert seen == [HELD, HELD, 0, 0, 1, 1, 3, 3, 5]


def test_a_chunk_may_begin_before_its_observation_but_must_fit() -> None:
    runner = ChunkExecutor(Clock(start=-1), 1)
    assert [runner.act(at(k), torch.Generator())[0, 1].item() for k in range(4)] == [1, 2, 3, 1]
    with pytest.raises(ValueError, match="begins 2 control periods after"):
        ChunkExecutor(Clock(start=2), 1).act(at(0), torch.Generator())
    with pytest.raises(ConfigError, match=r"last 0.1 s, a control period here 0.05 s"):
        ChunkExecutor(Clock(period=0.1), 1, Execution(period=0.05)).act(at(0), torch.Generator())


def test_what_cannot_be_executed_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes 8 control periods and a chunk holds 8"):
        ChunkExecutor(Clock(), 1, Execution("asynchronous", 8), still_of(1))
    with pytest.raises(ConfigError, match="takes 1 control periods and a chunk holds 1"):
        ChunkExecutor(Clock(1, 1), 1, Execution("asynchronous", background=True), still_of(1))
    with pytest.raises(ConfigError, match="samples chunks"):
        ChunkExecutor(Clock(), 1, Execution("realtime"), still_of(1))
    with pytest.raises(ValueError, match="needs `hold_action`"):
        ChunkExecutor(Clock(), 1, Execution(delay=1))


def test_a_residual_acts_every_period_on_its_bases_executor(residual: Callable[..., ResidualPolicy]) -> None:
    """The base holds while it infers; the correction goes on."""
    policy = residual(zero_init=True)
    held = torch.full((2, policy.size.action), 0.25)
    runner = ChunkExecutor(policy, 2, Execution(delay=2), lambda: held)
    rng, observation = torch.Generator().manual_seed(0), {"observation.state": torch.zeros(2, 3)}
    first, second, third = (runner.act(observation, rng) for _ in range(3))
    assert torch.equal(first, held) and torch.equal(second, held) and not torch.equal(third, held)
    with pytest.raises(ConfigError, match="comes? too|come too"):
        ChunkExecutor(policy, 2, Execution("asynchronous", 99), lambda: held)


def test_a_policy_behind_a_socket_is_a_policy() -> None:
    ours, theirs = Pipe()

    class Remote(Clock):
        def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
            ours.send(observation["observation.state"].numpy())
            return Chunk(torch.from_numpy(ours.recv()))

    def serve() -> None:
        while (state := theirs.recv()) is not None:
            theirs.send(
                Clock().infer({"observation.state": torch.from_numpy(state)}, torch.Generator()).actions.numpy()
            )

    server = threading.Thread(target=serve)
    server.start()
    runner = ChunkExecutor(Remote(), 2, Execution("asynchronous", 1), still_of(2))
    executed = [runner.act(at(step, 2), torch.Generator())[1].tolist() for step in range(7)]
    ours.send(None)
    server.join(30)
    assert executed == [[HELD, HELD], [0, 1], [0, 2], [0, 3], [0, 4], [4, 1], [4, 2]]


def test_resuming_infers_again_what_was_under_way() -> None:
    torch.manual_seed(0)
    policy = FlowPolicy(Size(1, 2), FlowConfig(hidden=16, horizon=8, execute=4))
    runner = ChunkExecutor(policy, 1, Execution("asynchronous", 2), still_of(1))
    rng = torch.Generator().manual_seed(0)
    for step in range(5):  # period 4 has just asked
        runner.act(at(step), rng)
    other = ChunkExecutor(policy, 1, Execution("asynchronous", 2), still_of(1))
    other.load_state_dict(runner.state_dict())
    assert torch.equal(other.act(at(5), rng), runner.act(at(5), rng)), "the chunk before goes on"
    assert other.age.item() == 1, "and the next one is asked for"


def test_a_warm_up_leaves_no_trace(residual: Callable[..., ResidualPolicy]) -> None:
    """Bit-identical with and without it, for a policy that samples and for one with state."""
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
