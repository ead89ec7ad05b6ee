from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.data import Dataset
from robot_rl.interface import success
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.seeds import LEARNING, training_seed
from sim.collect import collect
from sim.env import TaskEnv
from sim.make import make
from sim.randomization import episode_uniforms

SEED = 40


@pytest.mark.parametrize("episodes", [6, 5])
def test_each_environment_contributes_its_share(tmp_path: Path, episodes: int) -> None:
    """Whoever ends first must not fill the dataset: near cubes would crowd out far ones."""
    env = TaskEnv("panda-lift", 3)
    collected = collect(env, tmp_path / "data", episodes, seed=SEED, image_size=0)
    assert collected.episodes == episodes
    parameter = next(r for r in env.randomization if r.parameter == "cube.x")
    place = env.randomization.index(parameter)
    where = {  # the drawn place of every episode that any environment can have played
        round(float(parameter.quantile(episode_uniforms(training_seed(SEED) + i, e, place + 1)[-1:])[0]), 9): i
        for i in range(3)
        for e in range(60)
    }
    drawn = [e.record["randomization/cube.x"] for e in Dataset(tmp_path / "data").episodes]
    shares = [where[round(x, 9)] for x in drawn]
    assert sorted(shares.count(i) for i in range(3)) == ([2, 2, 2] if episodes == 6 else [1, 2, 2])


def test_going_on_never_begins_with_held_out_seeds(
    task: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever so many episodes on: what would come out above wraps around."""
    env, begun = TaskEnv(task(horizon=2), 1, threads=1), []
    reset = env.reset
    monkeypatch.setattr(env, "reset", lambda seed: (begun.append(seed), reset(seed=seed))[1])
    for episodes in (1, 2):
        collect(env, tmp_path / "data", episodes, seed=261, image_size=0, keep_failures=True, resume=episodes > 1)
    first = training_seed(261)
    assert first + 1_000_003 > LEARNING, "or this test shows nothing"
    assert begun == [first, first + 1_000_003 - LEARNING]


@pytest.mark.parametrize("name", ["success", "failure"])
def test_an_episode_that_ends_in_failure_is_no_success(
    task: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(success.TESTS, "always", lambda: lambda s: torch.ones(len(s.joint_position), dtype=torch.bool))
    env = TaskEnv(task(**{name: "always"}, success_hold=1), 2, threads=1)
    result = collect(env, tmp_path / "data", 4, seed=0, image_size=0, keep_failures=True)
    assert (result.episodes, result.attempts) == (4, 4)
    assert result.successes == (4 if name == "success" else 0)


def test_resume_moves_nothing_where_it_refuses(task: Callable[..., Any], tmp_path: Path) -> None:
    out, env = tmp_path / "data", TaskEnv(task(horizon=2), 1, threads=1)
    collect(env, out, 1, seed=0, image_size=0, keep_failures=True)
    left = out / "data/chunk-000/file-007.parquet"
    left.write_bytes(b"from a killed writer")
    before = (out / "meta/info.json").read_text()
    with pytest.raises(ConfigError, match="seed"):
        collect(env, out, 2, seed=1, image_size=0, keep_failures=True, resume=True)
    (out / "meta/info.json").write_text(before.replace('"observation.state"', '"observation.other"'))
    with pytest.raises(UserError, match="other columns"):
        collect(env, out, 2, seed=0, image_size=0, keep_failures=True, resume=True)
    assert left.exists()
    (out / "meta/info.json").write_text(before)
    collect(env, out, 2, seed=0, image_size=0, keep_failures=True, resume=True)
    assert Dataset(out).num_episodes == 2 and not left.exists() and len(list(out.rglob("file-007.parquet"))) == 1


def test_a_dataset_is_of_one_policy(tmp_path: Path) -> None:
    env, out = make("testbed:reach", 1), tmp_path / "data"
    for seed in (0, 1):
        torch.manual_seed(seed)
        policy = GaussianPolicy(Size(env.info.observation, env.info.action), GaussianConfig(hidden=(8,)))
        save_bundle(Bundle(policy, None, {}, task="testbed:reach"), tmp_path / "policy")
        count: dict[str, Any] = {"policy": tmp_path / "policy", "seed": 0, "keep_failures": True, "resume": True}
        if seed:
            with pytest.raises(ConfigError, match="policy_sha256"):
                collect(env, out, 3, **count)
        else:
            collect(env, out, 1, **count)
            collect(env, out, 2, **count)
    assert Dataset(out).num_episodes == 2


def test_a_rate_that_no_dataset_can_have_is_refused_before_anything_is_recorded(
    task: Callable[..., Any], tmp_path: Path
) -> None:
    slow = task()
    slow = replace(slow, interface=replace(slow.interface, controller=replace(slow.interface.controller, rate=12.5)))
    with pytest.raises(ConfigError, match=r"whole number of frames per second, and task 'panda-lift' runs at 12\.5 Hz"):
        collect(TaskEnv(slow, 1, threads=1), tmp_path / "data", 1, seed=0, image_size=0)
    assert not (tmp_path / "data").exists()


def test_a_task_without_demonstrator_says_so(tmp_path: Path) -> None:
    env = TaskEnv("go2-velocity", 1, threads=1)
    with pytest.raises(UserError, match="'go2-velocity' has no scripted demonstrator.*ppo"):
        collect(env, tmp_path / "data", 1, seed=0, image_size=0)
    assert not (tmp_path / "data").exists()
