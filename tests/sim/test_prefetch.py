"""Prefetched resets are bit-identical to ordinary resets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.step.sampling import EpisodeSampler
from sim.step.sensors import SensorModel

Build = Callable[..., Any]
Same = Callable[[Any, Any], bool]
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
    monkeypatch.setattr(MujocoEngine, "sibling", lambda self: None)
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
def test_interrupted_block_is_prefetched_again(
    shipped: Any, same: Same, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
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
