"""Pictures as observations: each environment observes its own current episode."""

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface.pipeline import Picture
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv

Build = Callable[..., Any]
KEY = "observation.images.front"
N, H, W = 5, 24, 32


@pytest.fixture(params=["prefetched", "reset when needed"])
def env(request: pytest.FixtureRequest, task: Build, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param != "prefetched":
        monkeypatch.setattr(MujocoEngine, "clone", lambda self: None)
    env = TaskEnv(task(pictures=(Picture("front", H, W),), horizon=6), N, threads=1)
    yield env
    env.close()


def frames(env: TaskEnv) -> torch.Tensor:
    """Return the current picture of every environment, rendered one by one."""
    return torch.from_numpy(np.stack([env.engine.render(i, "front", H, W) for i in range(N)]))


def test_picture_is_of_the_own_environment_and_episode(env: TaskEnv) -> None:
    first, _ = env.reset(seed=0, options={"stagger": True})
    assert first[KEY].dtype == torch.uint8 and first[KEY].shape == (N, H, W, 3)
    assert torch.equal(first[KEY], frames(env)) and len(first[KEY].flatten(1).unique(dim=0)) == N
    rng, ended = torch.Generator().manual_seed(0), 0
    for _ in range(14):
        observation, _, _, _, infos = env.step(torch.rand(N, 4, generator=rng) * 2 - 1)
        env.observation_spec.check(observation)
        assert torch.equal(observation[KEY], frames(env)), "after a reset, the picture of the new episode"
        if "final_obs" in infos:
            env.observation_spec.check(infos["final_obs"])
            other = (infos["final_obs"][KEY] != observation[KEY]).flatten(1).any(1)
            assert torch.equal(other, infos["_final_obs"]), "last picture of the old episode; other rows are equal"
            ended += int(infos["_final_obs"].sum())
    assert ended >= 10


def test_rendering_threads_end_with_the_environment(task: Build) -> None:
    def drawing() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("render")}

    others = drawing()
    for end in (TaskEnv.close, lambda env: None):  # or garbage collection without close
        env = TaskEnv(task(pictures=(Picture("front", H, W),)), 4, threads=1)
        env.reset(seed=0)
        own = drawing() - others
        assert own
        end(env)
        del env
        gc.collect()
        for thread in own:
            thread.join(10)
        assert not drawing() - others


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # OpenGL errors
def test_renderer_freed_on_another_thread_keeps_pictures_intact(task: Build) -> None:
    env, other = (TaskEnv(task(pictures=(Picture("front", H, W),)), 4, threads=1) for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=0)
    before = env.engine.render_batch(np.arange(4), "front", H, W)
    other.engine.render(0, "front", H, W)
    other.engine.myself = other.engine  # a cycle, freed by the garbage collector
    dropped = weakref.ref(other.engine)
    gc.disable()
    try:
        del other
        for _ in range(2 * (os.cpu_count() or 1)):  # on every rendering thread
            env.engine._renderers._pool.submit(gc.collect).result()
        assert dropped() is None
    finally:
        gc.enable()
    assert np.array_equal(env.engine.render_batch(np.arange(4), "front", H, W), before)
    env.close()
