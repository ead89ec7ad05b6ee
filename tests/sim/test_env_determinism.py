"""Episodes are bit-identical at any number of threads, in a used environment, and after a resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.training.checkpoint import load_state, save_state
from sim.commands import CommandSchedule
from sim.env import TaskEnv
from sim.tasks import tasks

Build = Callable[..., Any]
Same = Callable[[Any, Any], bool]


def actions(env: TaskEnv, steps: int, seed: int = 0) -> torch.Tensor:
    """Wide movements, an arm's down to the cube; the same rows however many there are."""
    rngs = [torch.Generator().manual_seed(100 * seed + i) for i in range(env.num_envs)]
    rows = [2 * torch.rand(steps, env.pipeline.actions.size, generator=rng) - 1 for rng in rngs]
    moves = torch.stack(rows, 1)
    moves[..., 2] -= 0.4
    return moves


def play(env: TaskEnv, moves: torch.Tensor) -> list[Any]:
    out = []
    for action in moves:
        observation, reward, terminated, truncated, infos = env.step(action)
        out.append([observation, reward, terminated, truncated, infos])
    return copy.deepcopy(out)


@pytest.fixture(params=list(tasks))
def short(request: pytest.FixtureRequest) -> Callable[..., TaskEnv]:
    """A task whose episodes and commands end and begin within a test, with all of its randomization."""

    def build(n: int = 3, threads: int = 1, horizon: int = 7) -> TaskEnv:
        task = tasks.get(request.param)
        often = replace(task.commands, hold=0.1) if task.commands else None
        task = replace(task, interface=replace(task.interface, horizon=horizon), commands=often)
        return TaskEnv(task, n, threads=threads)

    return build


def test_one_thread_equals_two_equals_one_again(short: Callable[..., TaskEnv], same: Same) -> None:
    runs = []
    for threads in (1, 2, 1):
        env = short(5, threads, horizon=12)
        start = env.reset(seed=11, options={"stagger": True})
        runs.append([start, play(env, actions(env, 30)), env.state_dict()])
    assert any(out[4].get("final_obs") for out in runs[0][1])
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


def test_a_used_environment_plays_a_seed_like_a_fresh_one(short: Callable[..., TaskEnv], same: Same) -> None:
    """Also to the last bit: no parameter may remember the episodes before."""
    used, fresh = short(horizon=4), short(horizon=4)
    used.reset(seed=1)
    play(used, actions(used, 30, seed=9))
    for field in ("body_mass", "body_inertia", "geom_size", "dof_invweight0"):
        used.reset(seed=7)
        fresh.reset(seed=7)
        mine, other = (env.engine.batch.expanded(field) for env in (used, fresh))
        assert (mine is None and other is None) or same(mine.copy(), other.copy()), field
    assert same(used.reset(seed=7), fresh.reset(seed=7))
    assert same(play(used, actions(used, 20)), play(fresh, actions(fresh, 20)))


def test_resumed_equals_uninterrupted(short: Callable[..., TaskEnv], tmp_path: Path, same: Same) -> None:
    """Through a file, into another process' environment, in the middle of episodes that have ended before."""
    env = short()
    env.reset(seed=4, options={"stagger": True})
    observation = play(env, actions(env, 17, seed=1))[-1][0]
    save_state(env.state_dict(), tmp_path / "env")
    expected = play(env, actions(env, 25, seed=2))
    other = short()
    other.reset(seed=99)
    play(other, actions(other, 9, seed=3))
    unused = short()
    for resumed in (other, unused):
        assert same(resumed.load_state_dict(load_state(tmp_path / "env")), observation)
        assert same(play(resumed, actions(resumed, 25, seed=2)), expected)
        assert same(resumed.state_dict(), env.state_dict())
    assert other.shield_events == env.shield_events


def test_a_snapshot_in_memory_stays_as_it_was(short: Callable[..., TaskEnv], same: Same) -> None:
    env = short(2)
    env.reset(seed=4)
    play(env, actions(env, 5))
    saved = env.state_dict()
    frozen = copy.deepcopy(saved)
    first = play(env, actions(env, 10, seed=3))
    assert same(saved, frozen)
    env.load_state_dict(saved)
    assert same(play(env, actions(env, 10, seed=3)), first)
    assert same(saved, frozen), "nor does a restored environment write into it"


def test_seeds_differ(task: Build, same: Same) -> None:
    env = TaskEnv(task(), 2, threads=1)
    assert not same(env.reset(seed=0), env.reset(seed=5))
    observation = env.reset(seed=0)[0]["observation.environment_state"]
    assert not torch.equal(observation[0], observation[1])


def test_the_number_of_environments_does_not_change_what_an_episode_draws(task: Build, same: Same) -> None:
    """Environment i of seed s is environment 0 of seed s + i, in its first episode and the next."""
    many = TaskEnv(task(horizon=2), 4, threads=1)
    many.reset(seed=20)
    starts = [(many.sampled.clone(), many.engine.qpos.copy())]
    play(many, actions(many, 2))
    starts.append((many.sampled.clone(), many.engine.qpos.copy()))
    for i in range(4):
        one = TaskEnv(task(horizon=2), 1, threads=1)
        one.reset(seed=20 + i)
        for episode, (drawn, qpos) in enumerate(starts):
            if episode:
                play(one, actions(one, 2))
            assert same(one.sampled[0], drawn[i]) and same(one.engine.qpos[0], qpos[i]), (i, episode)


@pytest.mark.parametrize("noise", [False, True], ids=["exact sensors", "noisy sensors"])
def test_the_number_of_environments_does_not_change_how_an_episode_goes(task: Build, noise: bool) -> None:
    """Sensor noise included. Batched products round differently with the batch size, hence a tolerance."""
    lift = task()
    shipped = [r for r in lift.randomization if noise or not r.parameter.startswith("sensor.")]
    many = TaskEnv(task(shipped), 3, threads=1)
    moves = actions(many, 12)
    observation, _ = many.reset(seed=30)
    together = [observation["observation.state"], *(out[0]["observation.state"] for out in play(many, moves))]
    for i in range(3):
        one = TaskEnv(task(shipped), 1, threads=1)
        observation, _ = one.reset(seed=30 + i)
        alone = [
            observation["observation.state"],
            *(out[0]["observation.state"] for out in play(one, moves[:, i : i + 1])),
        ]
        for t, (a, b) in enumerate(zip(alone, together, strict=True)):
            assert torch.allclose(a[0], b[i], atol=1e-4), (
                f"environment {i} differs at step {t} by {(a[0] - b[i]).abs().max():.1e}"
            )


def test_the_number_of_environments_does_not_change_a_walk(walk: Build, same: Same) -> None:
    """To the last bit, through resets, with noise, commands and pushes: nothing here is a batched product.

    Rewards are sums, whose order torch chooses by the size of the batch, so they may differ in the last bit.
    """
    task = walk(horizon=12, commands=CommandSchedule(hold=0.1))
    many = TaskEnv(task, 4, threads=1)
    start, _ = many.reset(seed=20)
    moves = actions(many, 30)
    together = [start, *play(many, moves)]
    for i in range(4):
        one = TaskEnv(task, 1, threads=1)
        start, _ = one.reset(seed=20 + i)
        alone = [start, *play(one, moves[:, i : i + 1])]
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
