"""Properties of all shipped tasks, and errors in the definition of tasks."""

import copy
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.pipeline import Pipeline
from robot_rl.util.errors import ConfigError, UserError
from sim.demonstrators import make_expert
from sim.engines.model import compile_model
from sim.env import TaskEnv
from sim.scenes import Scene
from sim.step.sensors import UNSEEN
from sim.tasks import tasks
from sim.tasks.base import view_sizes

every = pytest.mark.parametrize("name", list(tasks))


def actor(env: TaskEnv) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """Return the task's demonstrator, or a policy of wide, temporally correlated actions."""
    if env.task.expert:
        act: Callable[..., torch.Tensor] = make_expert(env, "STEADY", 0).act
        return act
    rng, last = torch.Generator().manual_seed(0), torch.zeros(env.num_envs, env.pipeline.actions.size)

    def explore(_: dict[str, torch.Tensor]) -> torch.Tensor:
        last.mul_(0.8).add_(0.4 * torch.randn(last.shape, generator=rng))
        return last.clone()

    return explore


@every
def test_dense_and_sparse_jacobians_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test of mujoco#3767 in 4.0.0: 200 physics steps with contacts and equal commands."""
    shipped = tasks.get(name)
    env = TaskEnv(shipped, 1, threads=1, randomize=False)
    engine: Any = env.engine
    sent: list[np.ndarray] = []
    rollout = engine.batch.rollout
    monkeypatch.setattr(
        engine.batch.__class__,
        "rollout",
        lambda self, n, control, record: (sent.append(control[0]), rollout(n, control=control, record=record))[1],
    )
    act = actor(env)
    observation, _ = env.reset(seed=0)
    start, control_start = engine.qpos[0].copy(), engine.batch.bind("ctrl")[0].copy()
    history = engine.batch.bind("history")[0].copy()
    while sum(map(len, sent)) < 200:
        observation, *_ = env.step(act(observation))
    kinds = (mujoco.mjtJacobian.mjJAC_DENSE, mujoco.mjtJacobian.mjJAC_SPARSE)
    models = [compile_model(env.robot, shipped.scene) for _ in kinds]
    both = [mujoco.MjData(model) for model in models]
    for kind, model, data in zip(kinds, models, both, strict=True):
        model.opt.jacobian = kind
        data.qpos, data.ctrl, data.history = start, control_start, history
    commands, contacts, apart = np.concatenate(sent)[:200], 0, 0.0
    for control in commands:
        for model, data in zip(models, both, strict=True):
            data.ctrl = control
            mujoco.mj_step(model, data)
        apart = max(apart, np.abs(both[0].qpos - both[1].qpos).max())
        contacts += both[1].ncon
        # Contacts with a height field, found by iteration, and a peg that rocks would amplify rounding errors.
        if shipped.scene.ground or any(thing.fixed for thing in shipped.scene.objects):
            both[1] = copy.copy(both[0])
    touches = env.robot.base or any(thing.solid and not thing.fixed for thing in shipped.scene.objects)
    for data in both:
        assert data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number == 0 and (contacts > 50 or not touches)
    assert len(commands) == 200 and apart < 1e-8
    joints = [model.joint(j).qposadr[0] for j in env.robot.joint_names]
    assert np.abs(both[0].qpos - start)[joints].max() > 0.05, "the robot moves"


@every
def test_expert_and_mirror_match_the_task(name: str) -> None:
    task = tasks.get(name)
    assert task.name == name and task.interface.cameras
    if task.expert:
        module, attribute = task.expert.split(":")
        assert callable(getattr(importlib.import_module(module), attribute))
    if task.mirror:
        env = TaskEnv(task, 1)
        sizes = [env.pipeline.observer.spec.size, env.privileged_size, env.pipeline.actions.size]
        assert [len(task.mirror.observation), len(task.mirror.privileged), len(task.mirror.action)] == sizes
        env.close()


@pytest.mark.parametrize(("changes", "message"), [
    ({"success": "reached:cub:0.06"}, "unknown object of the scene 'cub'; did you mean cube"),
    ({"failure": "reached:cub:0.06"}, "unknown object of the scene 'cub'"),
    ({"observations": ("object_to_tool:cub",)}, "unknown object of the scene 'cub'"),
    ({"observations": ("joint_positon",)}, "unknown observation term 'joint_positon'; did you mean joint_position"),
    ({"robot": "pnada"}, "unknown robot 'pnada'; did you mean panda"),
    ({"success": "reached:cube"}, "is written reached:<object>:<distance>"),
])  # fmt: skip
def test_an_invalid_task_raises_at_definition(changes: dict[str, Any], message: str) -> None:
    shipped = tasks.get("panda-lift")
    with pytest.raises(UserError, match=message):
        replace(shipped, interface=replace(shipped.interface, **changes))


def test_privileged_terms_are_checked_at_definition() -> None:
    shipped = tasks.get("panda-lift")
    with pytest.raises(UserError, match="unknown object of the scene 'cup'"):
        replace(shipped, privileged=("object_to_tool:cup",))
    with pytest.raises(UserError, match="unknown object of the scene 'cube'; known: none"):
        replace(shipped, scene=Scene())


@pytest.mark.parametrize(("expert", "skill", "message"), [
    ("sim.experts.lift:LiftExprt", "STEADY", r"lift\.py: it has no 'LiftExprt'; did you mean LiftExpert"),
    ("sim.experts.lift:LiftExpert", "STEDY", r"lift\.py: it has no 'STEDY'; did you mean STEADY"),
    ("sim.experts.lfit:LiftExpert", "STEADY", "needs module sim.experts.lfit, which cannot be found"),
    ("LiftExpert", "STEADY", "is 'LiftExpert'; it is written module:function"),
])  # fmt: skip
def test_a_missing_expert_raises(expert: str, skill: str, message: str) -> None:
    task = replace(tasks.get("panda-lift"), expert=expert)
    with pytest.raises(ConfigError, match=f"expert of task 'panda-lift' .*{message}"):
        task.make_expert(Pipeline(task.interface), 1, skill, 0)


@every
def test_view_sizes_are_those_of_the_environment(name: str) -> None:
    env = TaskEnv(name, 1, threads=1)
    env.reset(seed=0)
    sizes, of_objects = view_sizes(env.task, env.pipeline), env.task.scene.views
    true, measured = ({k: v.shape[1] for k, v in s.views.items() if k not in of_objects} for s in (env.true, env.state))
    assert true == sizes
    reference = env.pipeline.controller.reference(1)
    own = {"reference": reference.shape[1]} if reference.numel() else {}
    assert measured == {k: size for k, size in sizes.items() if k not in UNSEEN} | own


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("go2-velocity", {"commands": None}, "the controller reads command, and the task has no commands"),
    ("go2-velocity", {"gait": 0.0}, "the controller reads phase, and the interface has no gait"),
    ("go2-velocity", {"observations": ("base_velocity",)}, "'base_velocity' .* which no sensor measures"),
    ("panda-lift", {"observations": ("projected_gravity",)}, "reads base_quat, which robot 'panda' does not have"),
    ("panda-lift", {"privileged": ("base_height",)}, "'base_height' reads base_position, which robot 'panda' does"),
    ("panda-lift", {"failure": "fallen:60:0.15"}, "test 'fallen:60:0.15' reads base_quat, which robot 'panda'"),
])  # fmt: skip
def test_unavailable_views_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    task = tasks.get(name)
    of_task = {k: v for k, v in changes.items() if k in ("commands", "privileged")}
    of_interface = {k: v for k, v in changes.items() if k not in of_task}
    with pytest.raises((ConfigError, ValueError), match=message):
        replace(task, interface=replace(task.interface, **of_interface), **of_task)
