import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.data import Dataset, verify
from robot_rl.data.recording import SHIELD, STATE_AGE
from robot_rl.interface import success
from robot_rl.interface.shield import REASONS, ShieldConfig
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.seeds import LEARNING, training_seed
from sim.collect import collect
from sim.env import TaskEnv
from sim.make import make
from sim.randomization import Randomize, episode_uniforms

SEED = 40


def test_every_environment_records_an_equal_share(tmp_path: Path) -> None:
    """Short episodes with near cubes must not be over-represented in the dataset."""
    env = TaskEnv("panda-lift", 3)
    assert collect(env, tmp_path / "data", 5, seed=SEED, image_size=0).episodes == 5
    parameter = next(r for r in env.randomization if r.parameter == "cube.x")
    column = env.randomization.index(parameter)
    environment_of = {  # by the sampled coordinate of every episode that an environment can have played
        round(float(parameter.quantile(episode_uniforms(training_seed(SEED) + i, e, column + 1)[-1:])[0]), 9): i
        for i in range(3) for e in range(60)
    }  # fmt: skip
    sampled = [e.record["randomization/cube.x"] for e in Dataset(tmp_path / "data").episodes]
    shares = [environment_of[round(x, 9)] for x in sampled]
    assert sorted(shares.count(i) for i in range(3)) == [1, 2, 2]


def test_resume_does_not_use_held_out_seeds(task: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Seeds above the range for learning wrap around."""
    env, begun = TaskEnv(task(horizon=2), 1, threads=1), []
    reset = env.reset
    monkeypatch.setattr(env, "reset", lambda seed: (begun.append(seed), reset(seed=seed))[1])
    for episodes in (1, 2):
        collect(env, tmp_path / "data", episodes, seed=261, image_size=0, keep_failures=True, resume=episodes > 1)
    first = training_seed(261)
    assert first + 1_000_003 > LEARNING, "the seed wraps around in this test"
    assert begun == [first, first + 1_000_003 - LEARNING]


def test_changes_of_the_shield_and_delays_of_states_are_recorded(
    task: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """Of two environments, one drives its hand down to a table that is higher than the task's."""
    late = (Randomize("sensor.state_delay", 0.02, 0.02),)
    high = task(horizon=30, randomization=late, shield=ShieldConfig(table=0.1))
    env, out = TaskEnv(high, 2, threads=1), tmp_path / "data"
    actions = torch.tensor([[0.0, 0.0, 0.0, 1.0], [0.5, 0.0, -1.0, 1.0]])
    push = SimpleNamespace(reset=lambda ids: None, act=lambda observation: actions)
    monkeypatch.setattr("sim.collect.demonstrator", lambda *_: push)
    counted = collect(env, out, 2, seed=0, image_size=0, keep_failures=True)
    data = Dataset(out)
    bits, ages = (data.column(key).flatten() for key in (SHIELD, STATE_AGE))
    by_episode = [bits[e.start : e.start + e.length] for e in data.episodes]
    assert counted.episodes == 2 and sorted(bool(b.any()) for b in by_episode) == [False, True]
    assert [int((bits >> k & 1).sum()) for k in range(4)] == [env.shield_events[reason] for reason in REASONS[:4]]
    assert ages.tolist() == pytest.approx([0.02] * len(ages))


def test_resume_of_a_dataset_without_new_columns(task: Callable[..., Any], tmp_path: Path) -> None:
    out, env = tmp_path / "data", TaskEnv(task(horizon=2), 1, threads=1)
    collect(env, out, 1, seed=0, image_size=0, keep_failures=True)
    _forget_columns(out, SHIELD, STATE_AGE)
    assert verify(out) == []
    collect(env, out, 3, seed=0, image_size=0, keep_failures=True, resume=True)
    data = Dataset(out)
    assert data.num_episodes == 3 and SHIELD not in data.features and verify(out) == []


def _forget_columns(root: Path, *names: str) -> None:
    """Rewrite a dataset as a version wrote it that had no such columns."""
    for file in root.glob("data/*/*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(list(names)), file)
    for file in root.glob("meta/episodes/*/*.parquet"):
        table = pq.read_table(file)
        stats = [c for c in table.column_names for name in names if c.startswith(f"stats/{name}/")]
        pq.write_table(table.drop_columns(stats), file)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"] = {k: v for k, v in info["features"].items() if k not in names}
    (root / "meta/info.json").write_text(json.dumps(info))
    stats = json.loads((root / "meta/stats.json").read_text())
    (root / "meta/stats.json").write_text(json.dumps({k: v for k, v in stats.items() if k not in names}))


@pytest.mark.parametrize("name", ["success", "failure"])
def test_failure_is_not_counted_as_success(task: Any, tmp_path: Path, monkeypatch: Any, name: str) -> None:
    monkeypatch.setitem(success.TESTS, "always", lambda: lambda s: torch.ones(len(s.joint_position), dtype=torch.bool))
    env = TaskEnv(task(**{name: "always"}, success_hold=1), 2, threads=1)
    result = collect(env, tmp_path / "data", 4, seed=0, image_size=0, keep_failures=True)
    assert (result.episodes, result.attempts) == (4, 4)
    assert result.successes == (4 if name == "success" else 0)


def test_refused_resume_leaves_the_dataset_unchanged(task: Callable[..., Any], tmp_path: Path) -> None:
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


def test_resume_with_another_policy_is_refused(tmp_path: Path) -> None:
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


def test_unsuitable_tasks_are_refused_before_anything_is_written(task: Callable[..., Any], tmp_path: Path) -> None:
    slow = task()
    slow = replace(slow, interface=replace(slow.interface, controller=replace(slow.interface.controller, rate=12.5)))
    with pytest.raises(ConfigError, match=r"whole number of frames per second, and task 'panda-lift' runs at 12\.5 Hz"):
        collect(TaskEnv(slow, 1, threads=1), tmp_path / "data", 1, seed=0, image_size=0)
    with pytest.raises(UserError, match="'go2-velocity' has no scripted demonstrator.*ppo"):
        collect(TaskEnv("go2-velocity", 1, threads=1), tmp_path / "data", 1, seed=0, image_size=0)
    assert not (tmp_path / "data").exists()
