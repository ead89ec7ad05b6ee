"""What is compiled does what it does as written; what cannot be is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.interface.state import RobotState
from robot_rl.util.errors import Misfit
from sim.env import TaskEnv
from sim.fused import Graph, check_compiler, fused
from sim.rewards import Reward
from sim.tasks import tasks

Same = Callable[[Any, Any], bool]


def compiles() -> bool:
    try:
        check_compiler()
    except Misfit:
        return False
    return True


needs_compiler = pytest.mark.skipif(not compiles(), reason="needs a C++ compiler")


class Part:
    def __init__(self) -> None:
        self.sum = torch.zeros(3)


class Counter:
    """Remembers in itself, in a part, and in a state."""

    remembered = ("count", "part.sum", "idle", "other", "state")

    def __init__(self, compiled: bool):
        self.graphs: dict[str, Graph] | None = {} if compiled else None
        self.count, self.part = torch.zeros(3, dtype=torch.long), Part()
        self.state = RobotState(*(torch.full((3, 2), float(k)) for k in range(3)), objects={"cube": torch.ones(3, 7)})
        self.idle = self.other = torch.ones(3, 2)
        self.calls = 0

    @fused
    def add(self, x: Tensor, more: dict[str, Tensor]) -> dict[str, Any]:
        self.calls += 1
        before, self.count = self.count, self.count + 1
        self.part.sum = self.part.sum + x.sin() * more["scale"]
        self.other = self.other + self.idle  # the same tensor at first
        self.state = replace(self.state, joint_position=self.state.joint_velocity + x[:, None])
        return {"before": before, "both": [self.part.sum, self.idle], "cube": self.state.objects["cube"] * 2}

    @fused
    def looks(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x

    @fused
    def counts(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls

    @fused
    def leaves(self, x: Tensor) -> Tensor:
        return x + torch.from_numpy(np.sin(x.numpy()))


@needs_compiler
def test_results_and_memory_are_those_of_the_method_as_written() -> None:
    plain, compiled = Counter(False), Counter(True)
    idle = compiled.idle
    for k in range(4):
        x, more = torch.arange(3.0) + k, {"scale": torch.tensor(0.5 + k)}
        one, other = plain.add(x, more), compiled.add(x, more)
        assert torch.equal(one["before"], other["before"]) and torch.equal(one["cube"], other["cube"])
        assert all(torch.allclose(a, b) for a, b in zip(one["both"], other["both"], strict=True))
        assert torch.equal(plain.count, compiled.count) and torch.equal(plain.other, compiled.other)
        assert torch.allclose(plain.part.sum, compiled.part.sum)
        views = compiled.state.views
        assert views.keys() == plain.state.views.keys()
        assert all(torch.allclose(view, views[name]) for name, view in plain.state.views.items())
    assert compiled.idle is idle and other["both"][1] is idle, "what is not changed is not copied"
    assert (plain.calls, compiled.calls) == (4, 2), "once as written, to compare with, and once traced"


class Scale:
    """Multiplies by a tensor that is the same in every call, and by a number."""

    remembered = ("one", "other")

    def __init__(self, by: float, number: float):
        self.graphs: dict[str, Graph] | None = {}
        self.one = self.other = torch.zeros(3)
        self.by, self.number = torch.tensor([by, 1.0, 1.0]), number

    @fused
    def times(self, x: Tensor) -> Tensor:
        return x * self.by * self.number


@needs_compiler
def test_what_was_compiled_before_is_found_again_whatever_the_constants_are() -> None:
    """To compile an environment takes half a minute, to find it again seconds, in another process too."""
    from torch._dynamo.utils import counters

    x, hits = torch.arange(1.0, 4.0), []
    for by, number in ((1.0, 3.0), (1.0, 3.0), (1.00001, 3.0), (1.0, 3.00001)):
        counters.clear()
        scale = Scale(by, number)
        assert torch.equal(scale.times(x), x * scale.by * number)
        hits.append(counters["inductor"]["fxgraph_cache_hit"])
    assert hits[1:3] == [1, 1]


@pytest.mark.parametrize("method", ["looks", "leaves"])
def test_numbers_that_are_looked_at_are_refused_instead_of_frozen(method: str) -> None:
    counter = Counter(True)
    before = counter.count
    with pytest.raises(Misfit, match=f"Counter.{method} cannot be compiled: .*leave compiled out"):
        getattr(counter, method)(torch.ones(3))
    assert counter.count is before and counter.graphs == {}
    assert torch.equal(Counter(False).looks(torch.ones(3)), torch.full((3,), 2.0))


@needs_compiler
def test_tensors_of_other_shapes_are_refused_instead_of_read_past_their_ends() -> None:
    scale = Scale(2.0, 3.0)
    scale.times(torch.ones(3))
    with pytest.raises(Misfit, match=r"Scale\.times was compiled for .* other shapes: \(2,\) where it had \(3,\)"):
        scale.times(torch.ones(2))


@needs_compiler
def test_what_comes_out_otherwise_is_refused() -> None:
    counter = Counter(True)
    with pytest.raises(Misfit, match=r"Counter\.counts comes out otherwise when it is compiled; leave compiled out"):
        counter.counts(torch.ones(3))
    assert counter.graphs == {}


def short(name: str, horizon: int) -> Any:
    task = tasks.get(name)
    often = replace(task.commands, hold=0.1) if task.commands else None
    return replace(task, interface=replace(task.interface, horizon=horizon), commands=often)


def story(task: Any, compiled: bool, threads: int = 1) -> tuple[list[Any], TaskEnv]:
    """All that five environments tell while episodes end, an action is no number, and physics blow up."""
    env = TaskEnv(task, 5, threads=threads, compiled=compiled)
    out: list[Any] = [env.reset(seed=3, options={"stagger": True})]
    rng = torch.Generator().manual_seed(0)
    for k in range(30):
        actions = torch.rand(5, env.pipeline.actions.size, generator=rng) * 2 - 1
        if k == 9:
            actions[1, 0] = torch.nan
        if k == 14:
            env.engine.qvel[2] = np.nan  # type: ignore[attr-defined]
        out.append(env.step(actions))
    assert env.divergences == 1 and env.shield_events["nonfinite"] == 1 and env.episode.min() >= 3
    return copy.deepcopy(out), env


def leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, dict):
        return [t for name in sorted(tree) for t in leaves(tree[name])]
    return [t for item in tree for t in leaves(item)] if isinstance(tree, list | tuple) else [tree]


@needs_compiler
@pytest.mark.parametrize("name", ["go2-velocity", "panda-lift"])
def test_a_compiled_environment_tells_the_same_story(name: str) -> None:
    (plain, one), (compiled, other) = (story(short(name, horizon=12), compiled) for compiled in (False, True))
    for a, b in zip(leaves(plain), leaves(compiled), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-3, equal_nan=True)
    assert set(other.graphs or ()) == {"_decide", "_perceive"}
    assert (one.episode == other.episode).all() and one.shield_events == other.shield_events


@needs_compiler
def test_compiled_twice_it_is_the_same_floats_at_any_number_of_threads_and_resumed(same: Same) -> None:
    (one, first), (two, second) = (story(short("go2-velocity", horizon=12), True, threads) for threads in (1, 2))
    assert same(one, two)
    saved, still = first.state_dict(), torch.zeros(5, first.pipeline.actions.size)
    ahead = copy.deepcopy([first.step(still) for _ in range(14)])
    second.load_state_dict(saved)
    assert same([second.step(still) for _ in range(14)], ahead)


@needs_compiler
def test_a_reward_that_looks_at_numbers_is_refused_with_its_method() -> None:
    task = short("go2-velocity", 12)
    task = replace(task, rewards=(Reward("odd", 1.0, lambda m: m.asked.float() if m.asked.any() else m.asked.float()),))
    env = TaskEnv(task, 2, threads=1, compiled=True)
    env.reset(seed=0)
    with pytest.raises(Misfit, match=r"TaskEnv\._perceive cannot be compiled: .*a task's functions may not look at"):
        env.step(torch.zeros(2, 12))


def test_genesis_which_asks_a_simulator_is_refused_before_it_is_built() -> None:
    with pytest.raises(Misfit, match="engine 'genesis' cannot be compiled; leave compiled out, or use engine 'mujoco'"):
        TaskEnv("panda-lift", 1, engine="genesis", compiled=True)


def test_without_a_compiler_it_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Misfit, match="there is no 'no-such-compiler'; install g"):
        TaskEnv("go2-velocity", 2, threads=1, compiled=True)
