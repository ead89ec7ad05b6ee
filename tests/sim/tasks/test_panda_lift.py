"""The shipped task can be done, and its physics does not depend on how the solver stores a matrix."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from sim.engines.mujoco import compile_model
from sim.env import TaskEnv
from sim.experts.lift import STEADY, LiftExpert
from sim.scenes import Camera
from sim.tasks import tasks

Build = Callable[..., Any]


def expert(env: TaskEnv, seed: int = 0) -> LiftExpert:
    return LiftExpert(env.pipeline.observer.spec, env.pipeline.actions, env.num_envs, STEADY, seed)


def test_the_interface_names_the_scenes_cameras(task: Build) -> None:
    scene = replace(task().scene, cameras=(Camera("wrist", (1, 0, 1), (0, 0, 0)), Camera("side", (0, 1, 1), (0, 0, 0))))
    assert replace(task(), scene=scene).interface.cameras == ("wrist", "side")


def test_the_steady_expert_lifts(task: Build) -> None:
    env = TaskEnv(task(), 32, threads=1)
    operator = expert(env)
    observation, _ = env.reset(seed=500)
    first, done = torch.zeros(32, dtype=torch.bool), torch.zeros(32, dtype=torch.bool)
    while not done.all():
        observation, _, terminated, truncated, _ = env.step(operator.act(observation))
        ended = terminated | truncated
        first |= terminated & ~done
        done |= ended
        operator.reset(ended.nonzero().squeeze(-1))
    assert first.float().mean() > 0.9
    assert env.divergences == 0


def test_doing_nothing_does_not_lift(task: Build) -> None:
    env = TaskEnv(task(horizon=20), 8, threads=1)
    env.reset(seed=500)
    for _ in range(20):
        _, reward, terminated, truncated, _ = env.step(torch.zeros(8, 4))
        assert not terminated.any() and not reward.any()
    assert truncated.all()


@pytest.mark.parametrize("name", list(tasks))
def test_dense_and_sparse_jacobians_give_the_same_motion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard against mujoco#3767 in 4.0.0: 200 control periods of a grasp, the worst case for contacts."""
    shipped = tasks.get(name)
    env = TaskEnv(shipped, 1, threads=1, randomize=False)
    sent: list[np.ndarray] = []
    rollout = env.engine.batch.rollout
    monkeypatch.setattr(
        env.engine.batch.__class__,
        "rollout",
        lambda self, n, control, record: (
            sent.append(control[0]),
            rollout(n, control=control, record=record),
        )[1],
    )
    operator = expert(env)
    observation, _ = env.reset(seed=0)
    start, control_start = env.engine.qpos[0].copy(), env.engine.batch.bind("ctrl")[0].copy()
    history = env.engine.batch.bind("history")[0].copy()
    for _ in range(60):
        observation, *_ = env.step(operator.act(observation))
    ends = []
    for jacobian in (mujoco.mjtJacobian.mjJAC_DENSE, mujoco.mjtJacobian.mjJAC_SPARSE):
        model = compile_model(env.robot, shipped.scene)
        model.opt.jacobian = jacobian
        data = mujoco.MjData(model)
        data.qpos, data.ctrl, data.history = start, control_start, history
        path = []
        for control in np.concatenate(sent)[:200]:
            data.ctrl = control
            mujoco.mj_step(model, data)
            path.append(data.qpos.copy())
        ends.append(np.array(path))
        assert data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number == 0
    assert np.abs(ends[0] - ends[1]).max() < 1e-8
    assert np.abs(ends[0][-1, :7] - start[:7]).max() > 0.1, "the arm has moved"


def test_expert_is_named_by_the_task() -> None:
    for name in tasks:
        module, attribute = tasks.get(name).expert.split(":")
        assert callable(getattr(importlib.import_module(module), attribute))


def test_expert_forgets_ended_episodes_only(task: Build) -> None:
    env = TaskEnv(task(), 4, threads=1)
    operator = expert(env)
    aim, speed = operator.aim.clone(), operator.speed.clone()
    operator.closing[:] = 9
    operator.reset(torch.tensor([2]))
    assert operator.closing.tolist() == [9, 9, 0, 9]
    kept = torch.tensor([0, 1, 3])
    assert torch.equal(operator.aim[kept], aim[kept]) and not torch.equal(operator.aim[2], aim[2])
    assert torch.equal(operator.speed[kept], speed[kept])
