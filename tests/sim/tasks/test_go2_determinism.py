"""A walking episode is the same floats at any number of threads and environments, and after a resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.training.checkpoint import load_state, save_state
from sim.commands import CommandSchedule
from sim.env import TaskEnv

Build = Callable[..., Any]
Same = Callable[[Any, Any], bool]


def actions(n: int, steps: int, seed: int = 0) -> torch.Tensor:
    """The same rows whatever n is."""
    rows = [0.6 * torch.randn(steps, 12, generator=torch.Generator().manual_seed(100 * seed + i)) for i in range(n)]
    return torch.stack(rows, 1)


def play(env: TaskEnv, moves: torch.Tensor) -> list[Any]:
    out = []
    for action in moves:
        observation, reward, terminated, truncated, infos = env.step(action)
        out.append([observation, reward, terminated, truncated, infos])
    return copy.deepcopy(out)


@pytest.fixture
def short(walk: Build) -> Callable[..., TaskEnv]:
    """Episodes that end and begin within a test, all of the task's randomization, frequent commands."""

    def build(n: int = 4, threads: int = 1, horizon: int = 12) -> TaskEnv:
        return TaskEnv(walk(horizon=horizon, commands=CommandSchedule(hold=0.1)), n, threads=threads)

    return build


def test_one_thread_equals_two_equals_one_again(short: Callable[..., TaskEnv], same: Same) -> None:
    runs = []
    for threads in (1, 2, 1):
        env = short(5, threads)
        runs.append([env.reset(seed=11, options={"stagger": True}), play(env, actions(5, 30)), env.state_dict()])
    assert any(out[4].get("final_obs") for out in runs[0][1])
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


def test_the_number_of_environments_does_not_change_an_episode(short: Callable[..., TaskEnv], same: Same) -> None:
    """To the last bit, through resets, with noise, commands and pushes: nothing here is a batched product.

    Rewards are sums, whose order torch chooses by the size of the batch, so they may differ in the last bit.
    """
    many = short(4)
    start, _ = many.reset(seed=20)
    together = [start, *play(many, actions(4, 30))]
    for i in range(4):
        one = short(1)
        start, _ = one.reset(seed=20 + i)
        alone = [start, *play(one, actions(4, 30)[:, i : i + 1])]
        for t, (a, b) in enumerate(zip(alone, together, strict=True)):
            seen, others = (a, b) if t == 0 else (a[0], b[0])
            for name in seen:
                assert torch.equal(seen[name][0], others[name][i]), f"environment {i}, step {t}, {name}"
            if t:
                assert same([x[0] for x in a[2:4]], [x[i] for x in b[2:4]]), f"environment {i}, step {t}"
                assert torch.allclose(a[1][0], b[1][i], rtol=1e-4, atol=1e-6)
                for name, value in a[4]["metrics"].items():
                    assert torch.allclose(value[0], b[4]["metrics"][name][i], rtol=1e-4, atol=1e-6, equal_nan=True), (
                        name
                    )


def test_a_used_environment_plays_a_seed_like_a_fresh_one(short: Callable[..., TaskEnv], same: Same) -> None:
    used, fresh = short(3), short(3)
    used.reset(seed=1)
    play(used, actions(3, 20, seed=9))
    assert same(used.reset(seed=7), fresh.reset(seed=7))
    assert same(play(used, actions(3, 20)), play(fresh, actions(3, 20)))


def test_resumed_equals_uninterrupted(short: Callable[..., TaskEnv], tmp_path: Path, same: Same) -> None:
    """Through a checkpoint, into another process' environment, half-way through episodes."""
    env = short(3)
    env.reset(seed=4, options={"stagger": True})
    observation = play(env, actions(3, 17, seed=1))[-1][0]
    save_state(env.state_dict(), tmp_path / "env")
    expected = play(env, actions(3, 25, seed=2))
    other = short(3)
    assert same(other.load_state_dict(load_state(tmp_path / "env")), observation)
    assert same(play(other, actions(3, 25, seed=2)), expected)
    assert same(other.state_dict(), env.state_dict())


def test_a_resume_takes_effect_in_a_used_environment_too(short: Callable[..., TaskEnv], same: Same) -> None:
    env, used = short(2), short(2)
    env.reset(seed=4)
    play(env, actions(2, 9))
    used.reset(seed=77)
    play(used, actions(2, 21, seed=3))
    used.load_state_dict(env.state_dict())
    assert same(play(used, actions(2, 15, seed=5)), play(env, actions(2, 15, seed=5)))


def test_a_snapshot_in_memory_stays_as_it_was(short: Callable[..., TaskEnv], same: Same) -> None:
    env = short(2)
    env.reset(seed=4)
    play(env, actions(2, 5))
    saved = env.state_dict()
    frozen = copy.deepcopy(saved)
    first = play(env, actions(2, 10, seed=3))
    assert same(saved, frozen)
    env.load_state_dict(saved)
    assert same(play(env, actions(2, 10, seed=3)), first)
