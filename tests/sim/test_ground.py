"""Environments on uneven ground: where episodes begin, relative heights, levels, resumes, and prefetched resets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.interface.symmetry import Mirror
from robot_rl.util.errors import ConfigError
from sim import rewards as r
from sim.env import TaskEnv
from sim.randomization import Randomize
from sim.rewards import Reward
from sim.tasks import tasks
from sim.terrain import Terrain

SCAN = "height_scan:0.6:0.4:0.2"
TERRAIN = Terrain(levels=4, tile_size=5.0, border_width=3.0)
Build = Callable[..., Any]


@pytest.fixture
def rough() -> Build:
    """Build go2-velocity on small uneven ground; keywords replace fields of its interface."""

    def build(randomization: tuple[Randomize, ...] | None = None, terrain: Terrain = TERRAIN, **interface: Any) -> Any:
        walk = tasks.get("go2-velocity")
        mirror: Mirror | None = None
        return replace(
            walk, mirror=mirror, scene=replace(walk.scene, ground=terrain), metrics=r.rough_metrics,
            randomization=walk.randomization if randomization is None else randomization,
            privileged=(*walk.privileged, SCAN),
            interface=replace(walk.interface, observations=(*walk.interface.observations, SCAN), **interface),
        )  # fmt: skip

    return build


def actions(n: int, steps: int, seed: int = 0) -> torch.Tensor:
    return 0.3 * torch.randn(steps, n, 12, generator=torch.Generator().manual_seed(seed))


def test_episodes_begin_on_the_platforms_of_their_tiles(rough: Build) -> None:
    env = TaskEnv(rough(()), 64, threads=1)
    observation, _ = env.reset(seed=0)
    origins = torch.from_numpy(TERRAIN.origins(env.tiles.numpy())).float()
    assert torch.allclose(env.true.base_position, origins + torch.tensor([0, 0, 0.32]), atol=1e-5)
    assert torch.allclose(env.true.base_height, torch.tensor(0.32), atol=1e-5)
    assert torch.allclose(env.true.foot_ground_height, origins[:, 2:].expand(-1, 4), atol=1e-5)
    assert len(env.tiles.unique(dim=0)) > 15, "of 20 tiles"
    scan = env.pipeline.observer.spec.slice("height_scan")
    assert observation["observation.state"][:, scan].abs().max() < 1e-5, "0 above level ground"
    assert {"terrain/kind", "terrain/level"} <= set(env.episode_record(0))
    for _ in range(50):
        _, _, terminated, _, infos = env.step(torch.zeros(64, 12))
        assert not terminated.any()
    assert (infos["metrics"]["terrain_level"] == env.tiles[:, 1]).all()
    assert infos["metrics"]["base_height"].sub(0.3).abs().max() < 0.07


def test_failure_and_rewards_use_heights_above_the_ground(rough: Build) -> None:
    env = TaskEnv(rough((), Terrain(kinds=("slope_up", "slope_down"), levels=1)), 8, threads=1)
    env.reset(seed=0)
    assert (env.true.base_position[:, 2] < -0.3).any() and (env.true.base_position[:, 2] > 0.9).any()
    now: Any = replace(env.true)
    terms = (Reward("height", 1.0, r.base_height), Reward("clearance", 1.0, r.feet_clearance))
    transition = r.Transition(env.robot, torch.tensor(env.robot.home), now, now, env.episodes.feet, 0.02)  # type: ignore[arg-type]
    assert r.total(terms[:1], transition)[1]["height"].abs().max() < 1e-6
    assert env.episodes.feet is not None and env.episodes.feet.sole(now).abs().max() < 0.03
    assert env.pipeline.failure is not None and not env.pipeline.failure(now).any()
    now.base_position = now.base_position - torch.tensor([0, 0, 0.2])
    assert env.pipeline.failure(now).all()


def test_the_edge_of_the_ground_truncates_an_episode(rough: Build) -> None:
    env = TaskEnv(rough((), replace(TERRAIN, border_width=2.0)), 3, threads=1)
    env.reset(seed=0)
    env.engine.qpos[1, :3] = [14.0, 0, 0.32]  # type: ignore[attr-defined]
    _, _, terminated, truncated, infos = env.step(torch.zeros(3, 12))
    assert truncated.tolist() == [False, True, False] and not terminated.any() and infos["success"].tolist()[1]
    assert env.true.base_position[1, 0].abs() < 12.5, "back on a tile"


def test_robots_walk_from_tile_to_tile(rough: Build) -> None:
    env = TaskEnv(rough(()), 2, threads=1)
    env.reset(seed=0)
    for x in (-2.0, 0.0, 2.0, 13.0):
        env.engine.qpos[:, :3] = [x, 1.3, 0.6]  # type: ignore[attr-defined]
        env.step(torch.zeros(2, 12))
        assert env.true.height_scan.isfinite().all() and env.divergences == 0


def test_tiles_do_not_depend_on_the_number_of_environments(rough: Build, same: Any) -> None:
    many, few = (TaskEnv(rough(horizon=12), n, threads=1) for n in (6, 2))
    for env in (many, few):
        env.reset(seed=3)
    for action in actions(6, 30):
        many.step(action)
        few.step(action[:2])
        assert torch.equal(many.tiles[:2], few.tiles)
        assert same({k: v[:2] for k, v in many.true.views.items()}, few.true.views)


def test_a_resumed_environment_is_bit_identical(rough: Build, same: Any) -> None:
    env, other = (TaskEnv(rough(horizon=12), 4, threads=1) for _ in range(2))
    env.reset(seed=1)
    env.set_levels(torch.tensor([3, -1, 0, 2]))
    for action in actions(4, 20):
        env.step(action)
    other.reset(seed=7)
    observation = other.load_state_dict(env.state_dict())
    assert same(observation, env.episodes.observation())
    for action in actions(4, 30, 1):
        assert same(env.step(action), other.step(action)) and torch.equal(env.tiles, other.tiles)


def test_the_next_episode_begins_on_the_level_that_is_set_last(rough: Build) -> None:
    """Prefetched episodes of other levels are dropped; those of unchanged levels are used."""
    env, plain = (TaskEnv(rough(horizon=5), 4, threads=1) for _ in range(2))
    vars(plain)["prefetched"] = None
    for each in (env, plain):
        each.reset(seed=0)
    for k, action in enumerate(actions(4, 40)):
        wanted = torch.tensor([k // 5 % 4, 2, -1, (k // 7) % 4])
        for each in (env, plain):
            each.set_levels(wanted)
        done = env.step(action)[3]
        assert torch.equal(done, plain.step(action)[3])
        assert torch.equal(env.tiles, plain.tiles) and torch.equal(env.true.base_position, plain.true.base_position)
        assert not done.any() or (env.tiles[:, 1] == wanted)[wanted >= 0].all()


def test_levels_are_drawn_from_a_range(rough: Build) -> None:
    env = TaskEnv(rough(()), 40, threads=1, levels=(1, 2))
    env.reset(seed=0)
    assert set(env.tiles[:, 1].tolist()) == {1, 2} and env.simulation["levels"] == [1, 2]
    with pytest.raises(ConfigError, match=r"levels 2..4 are not within 0..3"):
        TaskEnv(rough(()), 1, levels=(2, 4))
    with pytest.raises(ConfigError, match="is on level ground; leave out --levels"):
        TaskEnv("go2-velocity", 1, levels=(0, 1))


def test_scans_are_noisy_and_true_for_critics(rough: Build) -> None:
    env = TaskEnv(rough((Randomize("sensor.scan_noise", 0.05, 0.05),)), 100, threads=1)
    observation, _ = env.reset(seed=0)
    seen, true = env.pipeline.observer.spec.slice("height_scan"), env.true_spec.slice("height_scan")
    assert observation["observation.state"][:, seen].std() == pytest.approx(0.05, rel=0.1)
    assert observation["observation.environment_state"][:, true].abs().max() < 1e-5
    with pytest.raises(ConfigError, match=r"cannot randomize sensor\.scan_noise"):
        noise = Randomize("sensor.scan_noise", 0.0, 0.1)
        TaskEnv(replace(tasks.get("go2-velocity"), randomization=(noise,)), 1)


def test_an_episode_that_diverged_is_replayed_on_its_ground(rough: Build, tmp_path: Path) -> None:
    from sim.replay import replay

    task = rough((), horizon=9)
    env = TaskEnv(task, 2, threads=1, diverged=tmp_path)
    env.set_levels(torch.tensor([3, 3]))
    env.reset(seed=0)
    env.step(torch.zeros(2, 12))
    env.engine.qvel[1, 8] = 1e7  # type: ignore[attr-defined]
    env.step(torch.zeros(2, 12))
    (file,) = tmp_path.glob("*.safetensors")
    assert replay(file, task=task).episode["drawn"]["terrain/level"] == 3
