"""Uneven ground: heights of the tiles, heights between grid points, and the views of robots that stand on it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.interface.rotation import heading, quat_to_matrix
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.engines.model import compile_model
from sim.objects import Box
from sim.rendering.gl import mujoco
from sim.scenes import Scene
from sim.step.ground import Ground, HeightField
from sim.tasks import tasks
from sim.terrain import KINDS, RIM, Terrain

SMALL = Terrain(levels=3, tile_size=5.0, border_width=2.0, seed=3)
terrains = st.builds(
    Terrain, kinds=st.permutations(KINDS).map(lambda kinds: tuple(kinds[:2])), levels=st.integers(1, 3),
    tile_size=st.sampled_from([5.0, 6.0]), border_width=st.sampled_from([0.0, 1.0]), max_slope=st.floats(2, 30),
    max_step=st.floats(0.01, 0.2), step_width=st.sampled_from([0.2, 0.3]),
    horizontal_scale=st.sampled_from([0.05, 0.1]), seed=st.integers(0, 9),
)  # fmt: skip


def walk_home(model: mujoco.MjModel) -> np.ndarray:
    """Return the home posture in the order of the model's joints."""
    go2 = robots.get("go2")
    return np.array([go2.home[go2.joint_names.index(model.joint(k + 1).name)] for k in range(12)])


def tile_of(terrain: Terrain, kind: str, level: int) -> np.ndarray:
    """Return the heights of one tile."""
    cells, border = (round(x / terrain.horizontal_scale) for x in (terrain.tile_size, terrain.border_width))
    y, x = border + level * cells, border + terrain.kinds.index(kind) * cells  # type: ignore[arg-type]
    return terrain.heights[y : y + cells + 1, x : x + cells + 1]


@given(terrains)
@settings(max_examples=25, deadline=None)
def test_tiles_have_flat_edges_and_platforms_and_no_higher_steps(terrain: Terrain) -> None:
    scale = terrain.horizontal_scale
    for level in range(terrain.levels):
        share = (level + 1) / terrain.levels
        for kind in terrain.kinds:
            tile = tile_of(terrain, kind, level).astype(float)
            rim = math.ceil(RIM / scale)
            edge = np.ones_like(tile, bool)
            edge[rim:-rim, rim:-rim] = False
            assert not tile[edge].any(), "flat strip along the edge"
            half = math.ceil(terrain.platform_width / scale) // 2 - 1
            middle = slice(len(tile) // 2 - half, len(tile) // 2 + half + 1)
            assert np.ptp(tile[middle, middle]) == 0, "flat platform"
            rise = max(np.abs(np.diff(tile, axis=axis)).max() for axis in (0, 1))
            slope = math.degrees(math.atan(rise / scale))
            if kind.startswith("slope"):
                assert slope == pytest.approx(share * terrain.max_slope, rel=1e-3)
            else:
                assert rise <= share * terrain.max_step + 1e-6
                assert rise > 0.49 * share * terrain.max_step
            assert np.sign(tile[len(tile) // 2, len(tile) // 2]) == {"up": -1, "down": 1}.get(kind.split("_")[-1], 0)


def test_stairs_have_equal_steps() -> None:
    tile = tile_of(SMALL, "stairs_down", 1)
    profile = tile[len(tile) // 2, : len(tile) // 2]
    rises = np.diff(profile)
    assert rises[rises != 0] == pytest.approx(SMALL.max_step * 2 / 3, abs=1e-6)
    assert set(np.diff(rises.nonzero()[0])) == {round(SMALL.step_width / SMALL.horizontal_scale)}
    assert np.array_equal(tile_of(SMALL, "stairs_up", 1), -tile)


def test_a_tile_depends_only_on_its_kind_level_and_seed() -> None:
    other = replace(SMALL, kinds=("rubble", "slope_up"), levels=SMALL.levels)
    for kind in other.kinds:
        assert np.array_equal(tile_of(SMALL, kind, 2), tile_of(other, kind, 2))
    assert not np.array_equal(tile_of(SMALL, "rubble", 2), tile_of(replace(SMALL, seed=4), "rubble", 2))
    assert np.array_equal(SMALL.heights, Terrain(levels=3, tile_size=5.0, border_width=2.0, seed=3).heights)


@pytest.mark.parametrize(("changes", "message"), [
    ({"max_slope": 60.0}, "max_slope"),
    ({"levels": 0}, "levels"),
    ({"step_width": 0.33}, "step_width 0.33 m is not a whole multiple of horizontal_scale 0.05 m; take 0.35 m"),
    ({"tile_size": 3.0}, "no room for a platform of 2.4 m"),
    ({"kinds": ()}, "kinds .* are empty or name one twice; known: slope_up"),
    ({"kinds": ("rubble", "rubble")}, "name one twice"),
    ({"kinds": ("sand",)}, "kinds"),
])  # fmt: skip
def test_impossible_terrain_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Terrain(**changes)


def test_impossible_scenes_and_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="not on uneven ground; leave out one"):
        Scene(objects=(Box("cube", 0.02, 0.1),), ground=SMALL)
    arm = tasks.get("so101-reach")
    with pytest.raises(ConfigError, match="has uneven ground, and robot 'so101' does not walk"):
        replace(arm, scene=Scene(cameras=arm.scene.cameras, ground=SMALL))
    walk = tasks.get("go2-velocity")
    with pytest.raises(ConfigError, match="height_scan, and the scene has no uneven ground"):
        replace(walk, privileged=("height_scan:0.4:0.4:0.2",))
    rough = replace(walk, scene=replace(walk.scene, ground=SMALL))
    with pytest.raises(ConfigError, match="give all of them the same length"):
        replace(rough, privileged=("height_scan:0.4:0.4:0.2", "height_scan:0.4:0.4:0.1"))


@given(terrains)
@settings(max_examples=8, deadline=None)
def test_heights_and_normals_are_those_of_rays_in_mujoco(terrain: Terrain) -> None:
    """Except within a cell of the front of a step, where rays fall past the edge that the heights slope down from."""
    walk = tasks.get("go2-velocity")
    model = compile_model(robots.get("go2"), replace(walk.scene, ground=terrain))
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0  # out of the way
    mujoco.mj_forward(model, data)
    field, rng, scale = HeightField(terrain), np.random.default_rng(0), terrain.horizontal_scale
    points = rng.uniform(-0.99, 0.99, (1000, 2)).astype(np.float32) * terrain.half_size
    x, y = torch.from_numpy(points).float().T
    line = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])[:, None] * scale
    bends = [field.height(x + line * i, y + line * j).diff(n=2, dim=0).abs().amax(0) for i, j in ((1, 0), (0, 1))]
    column = ((points[:, 0] + len(terrain.kinds) * terrain.tile_size / 2) // terrain.tile_size).clip(0, 1).astype(int)
    rubble = np.array([terrain.kinds[k] == "rubble" for k in column])  # gaps between its blocks may be narrower
    smooth = (torch.stack(bends).amax(0) < 1e-5).numpy() & ~rubble
    heights, normals = field.height(x, y), field.normal(x, y)
    geom, normal = np.zeros(1, np.int32), np.zeros(3)
    for k, point in enumerate(np.stack([x.numpy(), y.numpy()], 1).astype(float)):
        above = np.append(point, 5.0)
        there = 5 - mujoco.mj_ray(model, data, above, np.array([0, 0, -1.0]), None, 1, -1, geom, normal)
        assert model.geom_bodyid[geom[0]] == 0, "no hole"
        if smooth[k]:
            assert float(heights[k]) == pytest.approx(there, abs=1e-4)
            assert normals[k].numpy() == pytest.approx(normal, abs=1e-3)
    assert smooth.sum() > 0.3 * (~rubble).sum()


def test_robots_do_not_stumble_over_seams() -> None:
    """A robot slides over level ground of several shapes as over a plane."""
    walk, ends = tasks.get("go2-velocity"), []
    for ground in (None, Terrain(kinds=("rubble",), levels=1, tile_size=8.0, border_width=8.0)):
        model = compile_model(robots.get("go2"), replace(walk.scene, ground=ground))
        data = mujoco.MjData(model)
        data.qpos[:3] = -9.5, -9.5, 0.32
        data.qpos[7:] = walk_home(model)
        data.ctrl[:] = data.qpos[7:]
        data.qvel[:2] = 1.0, 0.0
        model.geom_friction[:, 0] = 0.01
        for _ in range(200):
            mujoco.mj_step(model, data)
        ends.append(data.qpos[:3].copy())
    assert np.abs(ends[0] - ends[1]).max() < 0.02


def test_points_outside_the_ground_have_the_height_of_its_edge() -> None:
    field = HeightField(SMALL)
    x = torch.tensor([1e3, -1e3, 0.0, torch.nan])
    assert not field.height(x, torch.tensor([0.0, 1e9, -1e3, 0.0])).any()
    assert field.outside(torch.tensor([0.0, 7.5, -14.0]), torch.zeros(3)).tolist() == [False, False, True]


def test_origins_are_the_centres_of_the_platforms() -> None:
    tiles = np.array([(kind, level) for kind in range(5) for level in range(3)])
    origins = SMALL.origins(tiles)
    assert origins[0, :2].tolist() == [-10.0, -5.0] and origins[-1, :2].tolist() == [10.0, 5.0]
    heights = HeightField(SMALL).height(*torch.from_numpy(origins[:, :2]).float().T)
    assert heights.numpy() == pytest.approx(origins[:, 2], abs=1e-6)
    assert origins[3 * KINDS.index("stairs_up") + 2, 2] < -0.2 < 0.2 < origins[3 * KINDS.index("stairs_down") + 2, 2]


@given(st.floats(-3, 3), st.floats(-0.3, 0.3), st.floats(-0.3, 0.3))
@settings(max_examples=30, deadline=None)
def test_the_scan_turns_with_the_heading_and_not_with_the_tilt(yaw: float, pitch: float, roll: float) -> None:
    cy, sy, cp, sp, cr, sr = (f(a / 2) for a in (yaw, pitch, roll) for f in (math.cos, math.sin))
    quat = torch.tensor([[cr * cp * cy + sr * sp * sy, sr * cp * cy - cr * sp * sy, cr * sp * cy + sr * cp * sy,
                          cr * cp * sy - sr * sp * cy]])  # fmt: skip
    x = quat_to_matrix(quat)[0, :2, 0]
    assert torch.allclose(heading(quat)[0], x / x.norm(), atol=1e-5)
    assert heading(quat)[0].tolist() == pytest.approx([math.cos(yaw), math.sin(yaw)], abs=1e-5)
    ground = Ground(SMALL, [(0.5, 0.2), (-0.3, 0.0)], 1, torch.device("cpu"))
    at = torch.tensor([[1.1, 2.2, 0.7]])
    seen = ground.views({"base_position": at, "foot_position": torch.zeros(1, 12), "base_quat": quat})
    for k, (ahead, left) in enumerate(((0.5, 0.2), (-0.3, 0.0))):
        point = (1.1 + math.cos(yaw) * ahead - math.sin(yaw) * left, 2.2 + math.sin(yaw) * ahead + math.cos(yaw) * left)
        height = ground.field.height(*torch.tensor(point))
        assert float(seen["height_scan"][0, k]) == pytest.approx(float(height) - 0.7, abs=1e-3)
