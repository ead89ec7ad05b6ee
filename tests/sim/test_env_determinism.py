"""An episode is the same floats at any number of threads, in a used environment, and after a resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.training.checkpoint import load_state, save_state
from sim.env import TaskEnv

Build = Callable[..., Any]
Same = Callable[[Any, Any], bool]


def actions(n: int, steps: int, seed: int = 0) -> torch.Tensor:
    """Wide, smooth movements down to the cube, the same rows whatever n is."""
    rows = [2 * torch.rand(steps, 4, generator=torch.Generator().manual_seed(seed + i)) - 1 for i in range(n)]
    return torch.stack(rows, 1) + torch.tensor([0.0, 0.0, -0.4, 0.0])


def play(env: TaskEnv, moves: torch.Tensor) -> list[Any]:
    out = []
    for action in moves:
        observation, reward, terminated, truncated, infos = env.step(action)
        out.append([observation, reward, terminated, truncated, infos])
    return copy.deepcopy(out)


def test_one_thread_equals_two_equals_one_again(task: Build, same: Same) -> None:
    moves = actions(4, 25)
    runs = []
    for threads in (1, 2, 1):
        env = TaskEnv(task(horizon=10), 4, threads=threads)
        runs.append([env.reset(seed=11), play(env, moves)])
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


def test_a_used_environment_plays_a_seed_like_a_fresh_one(task: Build, same: Same) -> None:
    """Also to the last bit: no parameter may remember the episodes before."""
    moves = actions(3, 15)
    used, fresh = TaskEnv(task(horizon=4), 3, threads=1), TaskEnv(task(horizon=4), 3, threads=1)
    used.reset(seed=1)
    play(used, actions(3, 30, seed=9))
    for field in ("body_mass", "body_inertia", "geom_size", "dof_invweight0"):
        used.reset(seed=7)
        fresh.reset(seed=7)
        assert same(used.engine.batch.expanded(field).copy(), fresh.engine.batch.expanded(field).copy()), field
    start = [env.reset(seed=7) for env in (used, fresh)]
    assert same(*start)
    assert same(play(used, moves), play(fresh, moves))


def test_seeds_differ(task: Build, same: Same) -> None:
    env = TaskEnv(task(), 2, threads=1)
    assert not same(env.reset(seed=0), env.reset(seed=5))
    observation = env.reset(seed=0)[0]["observation.environment_state"]
    assert not torch.equal(observation[0], observation[1])


def test_the_number_of_environments_does_not_change_what_an_episode_draws(task: Build, same: Same) -> None:
    """Environment i of seed s is environment 0 of seed s + i, in its first episode and the next."""
    many = TaskEnv(task(horizon=2), 4, threads=1)
    many.reset(seed=20)
    starts = [(many.drawn.copy(), many.engine.qpos.copy())]
    play(many, actions(4, 2))
    starts.append((many.drawn.copy(), many.engine.qpos.copy()))
    for i in range(4):
        one = TaskEnv(task(horizon=2), 1, threads=1)
        one.reset(seed=20 + i)
        for episode, (drawn, qpos) in enumerate(starts):
            if episode:
                play(one, actions(1, 2))
            assert same(one.drawn[0], drawn[i]) and same(one.engine.qpos[0], qpos[i]), (i, episode)


@pytest.mark.parametrize("noise", [False, True], ids=["exact sensors", "noisy sensors"])
def test_the_number_of_environments_does_not_change_how_an_episode_goes(task: Build, noise: bool) -> None:
    """Sensor noise included. Batched products round differently with the batch size, hence a tolerance."""
    lift = task()
    shipped = [r for r in lift.randomization if noise or not r.parameter.startswith("sensor.")]
    moves = actions(3, 12)
    many = TaskEnv(task(shipped), 3, threads=1)
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


def test_resumed_equals_uninterrupted(task: Build, tmp_path: Path, same: Same) -> None:
    """Through a file, into a fresh process' environment, in the middle of episodes that have ended before."""
    before, after = actions(3, 17, seed=1), actions(3, 17, seed=2)
    env = TaskEnv(task(horizon=7), 3, threads=1)
    env.reset(seed=4)
    observation = play(env, before)[-1][0]
    save_state(env.state_dict(), tmp_path / "env")
    expected = play(env, after)
    other = TaskEnv(task(horizon=7), 3, threads=1)
    other.reset(seed=99)
    assert same(other.load_state_dict(load_state(tmp_path / "env")), observation)
    assert same(play(other, after), expected)
    assert same(other.state_dict(), env.state_dict())
    assert other.shield_events == env.shield_events


def test_resumes_without_a_reset_before(task: Build, tmp_path: Path, same: Same) -> None:
    env = TaskEnv(task(horizon=7), 2, threads=1)
    env.reset(seed=4)
    play(env, actions(2, 10))
    save_state(env.state_dict(), tmp_path / "env")
    other = TaskEnv(task(horizon=7), 2, threads=1)
    other.load_state_dict(load_state(tmp_path / "env"))
    assert same(play(other, actions(2, 10, seed=3)), play(env, actions(2, 10, seed=3)))


def test_a_snapshot_in_memory_stays_as_it_was(task: Build, same: Same) -> None:
    env = TaskEnv(task(horizon=5), 2, threads=1)
    env.reset(seed=4)
    play(env, actions(2, 3))
    saved = env.state_dict()
    frozen = copy.deepcopy(saved)
    first = play(env, actions(2, 6, seed=3))
    assert same(saved, frozen)
    env.load_state_dict(saved)
    assert same(play(env, actions(2, 6, seed=3)), first)
    assert same(saved, frozen), "nor does a restored environment write into it"
