"""Episodes are bit-identical with any number of threads, after other episodes, after a resume, and with prefetch."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.training.checkpoint import load_state, save_state
from sim.commands import CommandSchedule
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.step.sampling import EpisodeSampler
from sim.step.sensors import SensorModel
from sim.tasks import tasks

Build = Callable[..., Any]
Same = Callable[[Any, Any], bool]


def actions(env: TaskEnv, steps: int, seed: int = 0) -> torch.Tensor:
    """Return large random actions (steps, n, A); an arm moves down. Row i does not depend on n."""
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
    """Builder of a task with all its randomization and with short episodes and commands."""

    def build(threads: int = 1) -> TaskEnv:
        task = tasks.get(request.param)
        often = replace(task.commands, hold=0.1) if task.commands else None
        task = replace(task, interface=replace(task.interface, horizon=4), commands=often)
        return TaskEnv(task, 3, threads=threads)

    return build


def test_threads_and_earlier_episodes_do_not_change_results(short: Callable[..., TaskEnv], same: Same) -> None:
    used, fresh = short(), short(threads=2)
    used.reset(seed=1)
    play(used, actions(used, 10, seed=9))
    for field in ("body_mass", "body_inertia", "geom_size", "dof_invweight0"):
        used.reset(seed=7)
        fresh.reset(seed=7)
        mine, other = (env.engine.batch.expanded(field) for env in (used, fresh))
        assert (mine is None and other is None) or same(mine.copy(), other.copy()), field
    options = {"stagger": True}
    assert same(used.reset(seed=7, options=options), fresh.reset(seed=7, options=options))
    played = play(used, actions(used, 12))
    assert any(step[4].get("final_obs") for step in played)
    assert same(played, play(fresh, actions(fresh, 12))) and same(used.state_dict(), fresh.state_dict())


def test_resume_is_bit_identical(short: Callable[..., TaskEnv], tmp_path: Path, same: Same) -> None:
    """Through a file, into an environment with other episodes; the state in memory does not change."""
    env, other = short(), short()
    env.reset(seed=4, options={"stagger": True})
    observation = play(env, actions(env, 9, seed=1))[-1][0]
    saved = env.state_dict()
    frozen = copy.deepcopy(saved)
    save_state(saved, tmp_path / "env")
    expected = play(env, actions(env, 10, seed=2))
    other.reset(seed=99)
    play(other, actions(other, 5, seed=3))
    for state in (load_state(tmp_path / "env"), saved):
        assert same(other.load_state_dict(state), observation)
        assert same(play(other, actions(other, 10, seed=2)), expected)
        assert same(other.state_dict(), env.state_dict()) and other.shield_events == env.shield_events
    assert same(saved, frozen)


def test_number_of_environments_does_not_change_an_arm_episode(task: Build) -> None:
    """With a tolerance, because the rounding of batched products depends on the batch size."""
    many = TaskEnv(task(), 3, threads=1)
    moves = actions(many, 12)
    observation, _ = many.reset(seed=30)
    together = [observation["observation.state"], *(out[0]["observation.state"] for out in play(many, moves))]
    for i in range(3):
        one = TaskEnv(task(), 1, threads=1)
        observation, _ = one.reset(seed=30 + i)
        played = play(one, moves[:, i : i + 1])
        alone = [observation["observation.state"], *(out[0]["observation.state"] for out in played)]
        for t, (a, b) in enumerate(zip(alone, together, strict=True)):
            assert torch.allclose(a[0], b[i], atol=1e-4), f"environment {i}, step {t}: {(a[0] - b[i]).abs().max():.1e}"


def test_number_of_environments_does_not_change_a_legged_episode(walk: Build, same: Same) -> None:
    """Bit-identical through resets, with noise, commands and pushes, because there are no batched products.

    Rewards may differ in the last bit: torch chooses the order of a sum by the batch size.
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
                    other = b[4]["metrics"][name][i]
                    assert torch.allclose(value[0], other, rtol=1e-4, atol=1e-6, equal_nan=True), name


# ---- prefetched resets ---------------------------------------------------------------------------------------------
STEPS, BROKEN, RESTORED = 60, 25, 40


@pytest.fixture(params=["panda-lift", "go2-velocity"])
def shipped(request: pytest.FixtureRequest, task: Build, walk: Build) -> Any:
    return task(horizon=12) if request.param == "panda-lift" else walk(horizon=12)


def story(task: Any) -> list[Any]:
    """Return all results of five environments: episodes end, one diverges, and a state is restored."""
    env = TaskEnv(task, 5, threads=1)
    env.reset(seed=3, options={"stagger": True})
    rng, saved, out = torch.Generator().manual_seed(0), {}, []
    for k in range(STEPS):
        if k == BROKEN:
            env.engine.qvel[2] = np.nan
        if k == RESTORED:
            env.load_state_dict(saved)
        out.append(env.step(torch.rand(5, env.pipeline.actions.size, generator=rng) * 2 - 1))
        out.append([env.true.views, env.state.views, env.episodes.sampler.next_episode.copy(), env.sampled.clone()])
        if k == BROKEN + 2:
            saved = env.state_dict()
    assert env.divergences == 1 and env.episodes.sampler.next_episode.min() >= 3
    return copy.deepcopy([*out, env.state_dict()])


def test_results_equal_those_without_prefetch(shipped: Any, same: Same, monkeypatch: pytest.MonkeyPatch) -> None:
    with_one = story(shipped)
    monkeypatch.setattr(MujocoEngine, "clone", lambda self: None)
    assert same(story(shipped), with_one)


def test_resets_are_prefetched_in_blocks(shipped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    sample = EpisodeSampler.sample
    monkeypatch.setattr(EpisodeSampler, "sample", lambda self, ids: (blocks.append(len(ids)), sample(self, ids))[1])
    env = TaskEnv(shipped, 24, threads=1)
    env.reset(seed=0, options={"stagger": True})
    ended = 0
    for _ in range(24):
        _, _, terminated, truncated, _ = env.step(torch.zeros(24, env.pipeline.actions.size))
        ended += int((terminated | truncated).sum())
    assert blocks[:2] == [24, 24] and len(blocks) <= 4
    assert 0 <= sum(blocks[1:]) - ended <= 24, "at most one episode ahead per environment"


def test_new_seed_discards_prefetched_episodes(shipped: Any, same: Same) -> None:
    used, fresh = TaskEnv(shipped, 3, threads=1), TaskEnv(shipped, 3, threads=1)
    still = torch.zeros(3, used.pipeline.actions.size)
    used.reset(seed=0)
    for _ in range(12):
        used.step(still)
    for env in (used, fresh):
        env.reset(seed=0)
        env.reset(seed=50)
    played = [[copy.deepcopy(env.step(still)) for _ in range(14)] for env in (used, fresh)]
    assert same(*played) and same(used.state_dict(), fresh.state_dict())


def test_prefetch_in_inference_mode_is_usable_outside(shipped: Any, same: Same) -> None:
    """A process may evaluate in inference mode and then train."""
    env, other = TaskEnv(shipped, 3, threads=1), TaskEnv(shipped, 3, threads=1)
    still = torch.zeros(3, env.pipeline.actions.size)
    other.reset(seed=0, options={"stagger": True})
    with torch.inference_mode():
        env.reset(seed=0, options={"stagger": True})
        for _ in range(13):
            env.step(still)
    for _ in range(13):
        other.step(still)
    assert same(*[[one.step(still) for _ in range(13)] for one in (env, other)])


@pytest.mark.parametrize("block", [0, 1], ids=["first block", "later block"])
def test_interrupted_block_is_prefetched_again(shipped: Any, same: Same, monkeypatch: Any, block: int) -> None:
    used, fresh = TaskEnv(shipped, 3, threads=1), TaskEnv(shipped, 3, threads=1)
    still, measure, begun = torch.zeros(3, used.pipeline.actions.size), SensorModel.measure, 0
    used.reset(seed=0)

    def interrupted(self: SensorModel, *arguments: Any) -> Any:
        nonlocal begun
        begun += len(arguments) == 3  # calls of a reset
        if begun == block + 1:
            raise KeyboardInterrupt
        return measure(self, *arguments)

    monkeypatch.setattr(SensorModel, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(40):
            used.step(still)
    monkeypatch.undo()
    for env in (used, fresh):
        env.reset(seed=0, options={"episode": block})
    played = [[copy.deepcopy(env.step(still)) for _ in range(14)] for env in (used, fresh)]
    assert same(*played) and same(used.state_dict(), fresh.state_dict() | {"divergences": used.divergences})
