"""Robots without a task around them: MuJoCo engines with one parameter value per environment, and motions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sim.engines.mujoco import MujocoEngine
from sim.objects import Box
from sim.scenes import Camera, Scene

SCENE = Scene((Box("cube", size=0.02, mass=0.1),), (Camera("front", (1.15, 0.0, 0.55), (0.45, 0.0, 0.1)),))


@pytest.fixture
def build() -> Callable[..., MujocoEngine]:
    """n robots at home; keywords are parameters with a value per environment, None keeps the default."""

    def build(robot: Any, scene: Scene, n: int = 2, cube: Any = (0.5, 0.15, 0.02), **parameters: Any) -> MujocoEngine:
        engine = MujocoEngine(robot, scene, n, threads=1)
        for name, values in parameters.items():
            chosen = [i for i, v in enumerate(values) if v is not None]
            engine.parameters[name.replace("__", ".")](np.array(chosen), np.array([values[i] for i in chosen], float))
        poses = {o.name: np.tile([*cube, 1.0, 0, 0, 0], (n, 1)) for o in scene.objects}
        engine.reset(np.arange(n), np.tile(robot.home, (n, 1)), poses)
        return engine

    return build


@pytest.fixture
def engine(panda: Any, build: Callable[..., MujocoEngine]) -> Callable[..., MujocoEngine]:
    """n Pandas, each with a cube to its left."""
    return lambda n=2, **values: build(panda, SCENE, n, **values)


@pytest.fixture
def hold() -> Callable[..., None]:
    """Command home plus an offset for a number of ticks of 5 ms, which are one physics step each."""

    def go(engine: Any, ticks: int, offset: Any = 0.0, width: float = 0.08) -> None:
        n, target = engine.num_envs, torch.tensor(engine.robot.home) + torch.as_tensor(offset)
        engine.step(target.expand(n, ticks, target.shape[-1]), torch.full((n, ticks, 1), width))

    return go
