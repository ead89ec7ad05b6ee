"""Robots that begin fallen: attitude, height and joints at the start, and links that collide."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from robot_rl.interface.observations import down
from sim.env import TaskEnv
from sim.rendering.gl import mujoco
from sim.tasks import tasks

LIMITS: dict[str, dict[str, float]] = {
    "start.roll": {"low": -math.pi, "high": math.pi}, "start.pitch": {"low": -0.5, "high": 0.5},
    "start.height": {"low": 0.2, "high": 0.2}, "robot.home_offset": {"low": 0.0, "high": 1.0},
}  # fmt: skip


def fallen(name: str = "go2-flat") -> Any:
    """Return a task in which all links collide and nobody minds a fall."""
    task = tasks.get(name)
    scene = replace(task.scene, collisions="all")
    return replace(task, scene=scene, mirror=None, interface=replace(task.interface, failure=""))


def test_robots_begin_in_the_air_at_any_roll_within_their_limits() -> None:
    env = TaskEnv(fallen(), 256, threads=1, ranges=LIMITS)
    env.reset(seed=0)
    over = down(env.true.base_quat)[:, 2]
    assert over.min() < -0.95 and over.max() > 0.95, "upright, and upside down"
    assert torch.allclose(env.true.base_position[:, 2], torch.tensor(0.52), atol=1e-5)
    low, high = (torch.tensor([getattr(j, end) for j in env.robot.joints]) for end in ("low", "high"))
    assert ((env.true.joint_position >= low - 1e-6) & (env.true.joint_position <= high + 1e-6)).all()
    env.close()


def test_on_uneven_ground_they_begin_above_their_tile() -> None:
    env = TaskEnv(fallen("go2-rough"), 16, threads=1, ranges=LIMITS)
    env.reset(seed=0)
    assert torch.allclose(env.true.base_height, torch.tensor(0.52), atol=1e-4)
    env.close()


def test_a_robot_on_its_back_lies_on_its_links() -> None:
    env = TaskEnv(fallen(), 4, threads=1, ranges={"start.roll": {"low": 3.1, "high": 3.1}})
    env.reset(seed=0)
    engine, model = env.engine, env.engine.model
    data, bodies = mujoco.MjData(model), set[str]()
    for k in range(80):
        env.step(torch.zeros(4, 12))
        if k > 50:
            data.qpos[:] = engine.qpos[0]
            mujoco.mj_forward(model, data)
            bodies |= {model.body(model.geom_bodyid[g]).name for g in np.ravel(data.contact.geom)}
    assert bodies - {"world"} and not any("foot" in name for name in bodies)
    assert (env.true.base_position[:, 2] > 0.03).all(), "nothing sinks into the ground"
    env.close()
