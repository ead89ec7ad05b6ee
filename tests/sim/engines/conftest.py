"""A Panda beside one cube, without a task around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sim.engines.mujoco import MujocoEngine
from sim.scenes import Camera, Object, Scene

SCENE = Scene((Object("cube", size=0.02, mass=0.1),), (Camera("front", (1.15, 0.0, 0.55), (0.45, 0.0, 0.1)),))


@pytest.fixture
def engine(panda: Any) -> Callable[..., MujocoEngine]:
    """n robots at home; `parameters` holds one value for each environment, None keeps the default."""

    def build(n: int = 2, cube: tuple[float, float, float] = (0.5, 0.15, 0.02), **parameters: Any) -> MujocoEngine:
        one = MujocoEngine(panda, SCENE, n, threads=1)
        for name, values in parameters.items():
            chosen = [i for i, v in enumerate(values) if v is not None]
            one.parameters[name.replace("__", ".")](np.array(chosen), np.array([values[i] for i in chosen], float))
        pose = np.tile([*cube, 1.0, 0, 0, 0], (n, 1))
        one.reset(np.arange(n), np.tile(panda.home, (n, 1)), {"cube": pose})
        return one

    return build


@pytest.fixture
def hold(panda: Any) -> Callable[..., None]:
    """Ask for a posture during a number of command ticks of 5 ms, which are one physics step each."""

    def go(engine: MujocoEngine, ticks: int, offset: Any = 0.0) -> None:
        target = torch.tensor(panda.home) + torch.as_tensor(offset)
        n = engine.num_envs
        engine.step(target.expand(n, ticks, 7), torch.full((n, ticks, 1), panda.gripper.width))

    return go
