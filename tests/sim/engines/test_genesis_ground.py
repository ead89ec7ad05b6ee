"""Uneven ground in Genesis: robots stand on the same heights as in MuJoCo."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from sim.env import TaskEnv
from sim.tasks import tasks
from sim.terrain import Terrain

needs_genesis = pytest.mark.skipif(not find_spec("genesis"), reason="Genesis is not installed")
pytestmark = [pytest.mark.timeout(900), needs_genesis]


def test_robots_stand_on_the_ground_of_mujoco() -> None:
    """Contacts are compiled for some minutes when this test runs first."""
    task = tasks.get("go2-rough")
    ground = Terrain(kinds=("slope_up", "stairs_down"), levels=2, tile_size=4.0, border_width=2.0)
    task = replace(task, scene=replace(task.scene, ground=ground), randomization=(), mirror=None)
    both = TaskEnv(task, 8, engine="genesis", device="cpu"), TaskEnv(task, 8, threads=1)
    for env in both:
        env.reset(seed=0)
    assert torch.equal(both[0].tiles, both[1].tiles) and len(both[0].tiles.unique(dim=0)) > 2
    for k in range(50):
        for env in both:
            env.step(torch.zeros(8, 12))
        apart = (both[0].true.base_position - both[1].true.base_position).norm(dim=1)
        assert k >= 2 or apart.max() < 0.002, "later, rounding errors have grown"
    for env in both:
        assert (env.true.base_height > 0.22).all() and env.divergences == 0
        env.close()
