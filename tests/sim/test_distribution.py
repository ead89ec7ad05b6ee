"""Ranges that change at run time: from the next episodes on, saved, and known to prefetched episodes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.interface.pipeline import Picture
from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.util.errors import ConfigError, UnknownName
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.randomization import Randomize

Build = Callable[..., Any]
Same = Callable[[Any, Any], bool]
MASS = 4
"""Column of cube.mass in panda-lift."""


def play(env: TaskEnv, steps: int) -> list[Any]:
    rng = torch.Generator().manual_seed(1)
    return [copy.deepcopy(env.step(2 * torch.rand(env.num_envs, 4, generator=rng) - 1)) for _ in range(steps)]


def test_unchanged_ranges_change_nothing(task: Build, same: Same) -> None:
    plain, touched = (TaskEnv(task(horizon=3), 3, threads=1) for _ in range(2))
    for env in (plain, touched):
        env.reset(seed=0)
    touched.set_ranges({r.parameter: (r.low, r.high) for r in touched.randomization})
    assert same(play(plain, 7), play(touched, 7))


@pytest.mark.parametrize("prefetch", [True, False])
def test_new_ranges_hold_from_the_next_episode_on(task: Build, prefetch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not prefetch:
        monkeypatch.setattr(MujocoEngine, "clone", lambda self: None)
    env = TaskEnv(task(horizon=3), 4, threads=1)
    env.reset(seed=0)
    play(env, 4)  # the next episodes are prefetched now
    before = env.sampled.clone()
    env.set_ranges({"cube.mass": (0.5, 0.6)})
    play(env, 1)
    assert torch.equal(env.sampled, before), "not in running episodes"
    play(env, 1)
    assert ((env.sampled[:, MASS] >= 0.5) & (env.sampled[:, MASS] <= 0.6)).all()
    masses = env.engine.batch.expand("body_mass")[:, env.engine.model.body("scene/cube").id]
    assert masses == pytest.approx(env.sampled[:, MASS].numpy())
    assert env.episode_record(0)["randomization/cube.mass"] >= 0.5
    env.close()


def test_changed_ranges_resume_bit_identically(task: Build, tmp_path: Path, same: Same) -> None:
    env, other = (TaskEnv(task(horizon=3), 3, threads=1) for _ in range(2))
    env.reset(seed=0)
    play(env, 2)
    env.set_ranges({"cube.mass": (0.5, 0.6), "sensor.object_delay": (0.1, 0.2)})
    play(env, 5)
    save_state(env.state_dict(), tmp_path / "env")
    expected = play(env, 8)
    other.reset(seed=9)
    other.set_ranges({"cube.mass": (0.1, 0.2)})
    play(other, 2)
    other.load_state_dict(load_state(tmp_path / "env"))
    assert other.randomization == env.randomization
    assert same(play(other, 8), expected) and same(other.state_dict(), env.state_dict())
    for each in (env, other):
        each.close()


def test_ranges_without_effect_are_refused_and_change_nothing(task: Build) -> None:
    env = TaskEnv(task(), 1, threads=1)
    before = env.randomization
    with pytest.raises(UnknownName, match="randomized parameter 'cube.mas'; did you mean cube.mass"):
        env.set_ranges({"cube.mas": (0, 1)})
    for name, bounds, message in (
        ("cube.size", (-1, 1), "cannot be negative"), ("cube.mass", (2, 1), "low 2.0 is above"),
        ("robot.action_delay", (0, 1), "at most 0.08 s"), ("sensor.object_delay", (0, 1), "at most 0.25 s"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            env.set_ranges({"cube.friction": (0.1, 0.2), name: bounds})
    assert env.randomization == before
    env.close()


# ---- delayed pictures ----------------------------------------------------------------------------------------------
KEY = "observation.images.front"


@pytest.mark.parametrize("prefetch", [True, False])
def test_pictures_are_those_of_some_periods_ago(
    task: Build, prefetch: bool, monkeypatch: pytest.MonkeyPatch, same: Same
) -> None:
    if not prefetch:
        monkeypatch.setattr(MujocoEngine, "clone", lambda self: None)
    shown, periods = task(pictures=(Picture("front", 24, 32),), horizon=5), 2
    envs = [
        TaskEnv(task([*shown.randomization, Randomize("camera.delay", delay, delay)], pictures=shown.interface.pictures,
                     horizon=5), 3, threads=1)
        for delay in (0.0, periods * 0.05 + 0.01)
    ]  # fmt: skip
    (first, _), (late, _) = (env.reset(seed=2) for env in envs)
    assert torch.equal(first[KEY], late[KEY])
    past, rng = [first[KEY]] * (periods + 1), torch.Generator().manual_seed(0)
    for _ in range(12):
        action = 2 * torch.rand(3, 4, generator=rng) - 1
        (now, *_, infos), (then, *_) = (env.step(action) for env in envs)
        ended = infos.get("_final_obs", torch.zeros(3, dtype=torch.bool))
        past = [torch.where(ended[:, None, None, None], now[KEY], old) for old in past[1:]] + [now[KEY]]
        assert torch.equal(then[KEY], past[0])
        assert same(now["observation.state"], then["observation.state"])
    state = envs[1].state_dict()
    assert torch.equal(envs[1].load_state_dict(state)[KEY], then[KEY])
    assert np.array_equal(envs[1].episodes.pictures.lag, [periods] * 3)  # type: ignore[union-attr]
    for env in envs:
        env.close()
