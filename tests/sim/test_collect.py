from __future__ import annotations

from pathlib import Path

import pytest

from robot_rl.data import Dataset
from sim.collect import collect
from sim.env import TaskEnv
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
        round(float(parameter.quantile(episode_uniforms(SEED + i, e, place + 1)[-1:])[0]), 9): i
        for i in range(3)
        for e in range(60)
    }
    drawn = [e.record["randomization/cube.x"] for e in Dataset(tmp_path / "data").episodes]
    shares = [where[round(x, 9)] for x in drawn]
    assert sorted(shares.count(i) for i in range(3)) == ([2, 2, 2] if episodes == 6 else [1, 2, 2])
