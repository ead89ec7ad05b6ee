"""Cameras as observations: each environment's own, of its own episode, whatever draws them."""

from __future__ import annotations

import gc
import json
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface.pipeline import Interface, Picture
from robot_rl.util.errors import UserError
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.scenes import Camera

Build = Callable[..., Any]
KEY = "observation.images.front"
N, H, W = 5, 24, 32


@pytest.fixture(params=["prefetched", "reset when needed"])
def env(request: pytest.FixtureRequest, task: Build, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param != "prefetched":
        monkeypatch.setattr(MujocoEngine, "sibling", lambda self: None)
    env = TaskEnv(task(pictures=(Picture("front", H, W),), horizon=6), N, threads=1)
    yield env
    env.close()


def frames(env: TaskEnv) -> torch.Tensor:
    """What each environment's camera sees now, one after the other."""
    return torch.from_numpy(np.stack([env.engine.render(i, "front", H, W) for i in range(N)]))


def test_every_environment_sees_itself(env: TaskEnv) -> None:
    first, _ = env.reset(seed=0, options={"stagger": True})
    assert first[KEY].dtype == torch.uint8 and first[KEY].shape == (N, H, W, 3)
    assert torch.equal(first[KEY], frames(env)) and len(first[KEY].flatten(1).unique(dim=0)) == N
    rng, ended = torch.Generator().manual_seed(0), 0
    for _ in range(14):
        observation, _, _, _, infos = env.step(torch.rand(N, 4, generator=rng) * 2 - 1)
        env.observation_spec.check(observation)
        assert torch.equal(observation[KEY], frames(env)), "that of the new episode where one has begun"
        if "final_obs" in infos:
            env.observation_spec.check(infos["final_obs"])
            other = (infos["final_obs"][KEY] != observation[KEY]).flatten(1).any(1)
            assert torch.equal(other, infos["_final_obs"]), "the last of the old episode, and the same elsewhere"
            ended += int(infos["_final_obs"].sum())
    assert ended >= 10


def test_a_resumed_environment_sees_the_same(env: TaskEnv) -> None:
    env.reset(seed=0)
    observation = env.step(torch.zeros(N, 4))[0]
    state = env.state_dict()
    env.step(torch.ones(N, 4))
    assert torch.equal(env.load_state_dict(state)[KEY], observation[KEY])


def test_nothing_else_changes_with_pictures(env: TaskEnv, task: Build, same: Callable[[Any, Any], bool]) -> None:
    blind = TaskEnv(task(horizon=6), N, threads=1)
    assert KEY not in blind.observation_spec and set(blind.reset(seed=0)[0]) == set(blind.observation_space)
    env.reset(seed=0)
    for _ in range(8):
        seeing, others = (list(one.step(torch.ones(N, 4))) for one in (env, blind))
        for out in (seeing[0], seeing[4].get("final_obs", {})):
            out.pop(KEY, None)
        assert same(seeing, others)


def test_the_threads_that_draw_end_with_the_environment(task: Build) -> None:
    def drawing() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("render")}

    others = drawing()
    for end in (TaskEnv.close, lambda env: None):  # or collected without being closed
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


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # as when OpenGL refuses the context
def test_a_renderer_that_another_thread_drops_spoils_no_picture(task: Build) -> None:
    env, other = (TaskEnv(task(pictures=(Picture("front", H, W),)), 4, threads=1) for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=0)
    before = env.engine.render_batch(np.arange(4), "front", H, W)
    other.engine.render(0, "front", H, W)
    other.engine.myself = other.engine  # a cycle, which the garbage collector frees
    dropped = weakref.ref(other.engine)
    gc.disable()
    try:
        del other
        for _ in range(2 * (os.cpu_count() or 1)):  # on each thread that draws
            env.engine._renderers._pool.submit(gc.collect).result()
        assert dropped() is None
    finally:
        gc.enable()
    assert np.array_equal(env.engine.render_batch(np.arange(4), "front", H, W), before)
    env.close()


def test_an_interface_with_pictures_survives_json_and_one_without_is_as_before(task: Build) -> None:
    seeing = task(pictures=(Picture("front", H, W),)).interface
    assert Interface.from_json(json.loads(json.dumps(seeing.to_json()))) == seeing
    assert "pictures" not in task().interface.to_json()


@pytest.mark.parametrize(
    ("pictures", "message"),
    [
        ((Picture("frnt"),), "unknown camera 'frnt'; did you mean front"),
        ((Picture("front"), Picture("front", 24, 24)), "camera 'front' is named 2 times"),
    ],
)
def test_a_camera_that_is_not_there_is_refused(task: Build, pictures: tuple[Picture, ...], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        task(pictures=pictures)
    with pytest.raises(ValueError, match="height"):
        Picture("front", height=0)


def test_two_cameras_of_different_size(task: Build) -> None:
    shipped = task()
    second = Camera("side", position=(0.5, -1.0, 0.4), target=(0.5, 0.0, 0.1))
    scene = replace(shipped.scene, cameras=(*shipped.scene.cameras, second))
    interface = replace(shipped.interface, cameras=(), pictures=(Picture("front", H, W), Picture("side", 16, 16)))
    env = TaskEnv(replace(shipped, scene=scene, interface=interface), 2, threads=1)
    observation, _ = env.reset(seed=0)
    assert [tuple(observation[f"observation.images.{c}"].shape) for c in ("front", "side")] == [
        (2, H, W, 3),
        (2, 16, 16, 3),
    ]
    env.observation_spec.check(observation)
    env.close()
