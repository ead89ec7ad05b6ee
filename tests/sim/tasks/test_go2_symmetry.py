"""Mirror symmetry of go2-velocity: a reflected action in a reflected state gives the reflected next state."""

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.interface.symmetry import Reflection
from sim.env import TaskEnv
from sim.tasks import tasks

Build = Callable[..., Any]
MIRROR = tasks.get("go2-velocity").mirror
VECTOR, PSEUDOVECTOR = np.array([1.0, -1.0, 1.0]), np.array([-1.0, 1.0, -1.0])
COMMAND = torch.tensor([[0.6, 0.3, -0.5]])


def other_side(name: str) -> str:
    """Return the body on the other side: FL_foot for FR_foot, Head for Head."""
    swap = {"FL": "FR", "FR": "FL", "RL": "RR", "RR": "RL"}
    return swap.get(name[:2], name[:2]) + name[2:]


def inertia(model: mujoco.MjModel, body: int) -> np.ndarray:
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[body])
    axes = turn.reshape(3, 3)
    return axes @ np.diag(model.body_inertia[body]) @ axes.T


def symmetrize(env: TaskEnv) -> float:
    """Give both sides equal inertias; return the largest relative difference of the manufacturer's."""
    engine: Any = env.engine
    model, difference = engine.model, 0.0
    new = {}
    for body in range(1, model.nbody):
        twin = model.body(other_side(model.body(body).name)).id
        flip = np.diag(VECTOR)
        reflected = flip @ inertia(model, twin) @ flip
        mean = (inertia(model, body) + reflected) / 2
        centre = (model.body_ipos[body] + VECTOR * model.body_ipos[twin]) / 2
        assert model.body_mass[body] == pytest.approx(model.body_mass[twin])
        assert np.allclose(model.body_pos[body], VECTOR * model.body_pos[twin], atol=1e-9)
        if model.body_mass[body]:
            gap = np.abs(inertia(model, body) - reflected).max() / np.abs(mean).max()
            difference = max(difference, float(gap))
        moments, axes = np.linalg.eigh(mean)
        axes[:, 0] *= np.linalg.det(axes)
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, axes.ravel())
        new[body] = (moments, quat, centre)
    for body, values in new.items():
        for field, value in zip(("body_inertia", "body_iquat", "body_ipos"), values, strict=True):
            engine.batch.expand(field)[:, body] = value
    engine.batch.set_const()
    return difference


def constant(command: Tensor) -> Callable[..., Tensor]:
    """Return a command schedule with one constant command."""
    return lambda spec, keys, steps, rate: command.expand(len(keys), -1)


def pair(walk: Build, symmetric: bool) -> tuple[TaskEnv, TaskEnv]:
    """Return environments of a robot and of its mirror image, with reflected commands."""
    reflected = COMMAND * torch.tensor([1.0, -1.0, -1.0])
    envs = [TaskEnv(walk((), commands=constant(c)), 1, threads=1) for c in (COMMAND, reflected)]
    # The mirror exchanges the diagonals of a trot, so its clock is half a cycle ahead.
    clock = envs[1].pipeline.phase
    envs[1].pipeline.phase = lambda steps: (clock(steps) + 0.5) % 1.0  # type: ignore[method-assign]
    for env in envs:
        if symmetric:
            symmetrize(env)
        env.reset(seed=0)
    return envs[0], envs[1]


def privileged() -> Reflection:
    """Return the reflection of the privileged observation without randomized parameters."""
    return Reflection(MIRROR.privileged.index[:8], MIRROR.privileged.sign[:8])


def apart(walk: Build, steps: int, symmetric: bool) -> list[float]:
    """Return the largest difference between one robot's observations and the other's reflected ones, per step."""
    robot, image = pair(walk, symmetric)
    rng, found, walked = torch.Generator().manual_seed(0), [], 0.0
    action = torch.zeros(1, 12)
    for _ in range(steps):
        action = 0.7 * action + 0.2 * torch.randn(1, 12, generator=rng)  # small enough not to fall
        seen, reward, terminated, _, _ = robot.step(action)
        other, reward_there, ended_there, _, _ = image.step(MIRROR.action(action))
        assert torch.equal(terminated, ended_there) and not terminated.any()
        gap = (MIRROR.observation(other["observation.state"]) - seen["observation.state"]).abs().max()
        behind = privileged()(other["observation.environment_state"]) - seen["observation.environment_state"]
        found.append(max(float(gap), float(behind.abs().max()), float((reward - reward_there).abs())))
        walked = max(walked, float(seen["observation.state"].abs().max()))
    assert walked > 3.0, "the robots move"
    return found


def test_a_mirrored_robot_moves_as_its_mirror_image(walk: Build) -> None:
    assert max(apart(walk, 30, symmetric=True)) < 1e-4


def test_the_manufacturers_model_is_nearly_symmetric(walk: Build) -> None:
    """In the URDF, some inertias of trunk and legs are not symmetric."""
    env = TaskEnv(walk(()), 1, threads=1)
    assert 0 < symmetrize(env) < 0.05
    assert max(apart(walk, 5, symmetric=False)) < 0.1


@pytest.mark.parametrize("wrong", ["observation", "action"])
def test_a_wrong_sign_is_detected(walk: Build, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong signs of two hips, to show that the first test can fail."""
    right = getattr(MIRROR, wrong)
    sign = right.sign.clone()
    sign[-12] *= -1
    sign[-9] *= -1
    monkeypatch.setitem(MIRROR.__dict__, wrong, Reflection(right.index, sign))
    assert max(apart(walk, 5, symmetric=True)) > 1e-3


def test_only_lateral_parameters_change_their_sign() -> None:
    names = [r.parameter for r in tasks.get("go2-velocity").randomization]
    signs = MIRROR.privileged.sign[8:].tolist()
    assert [n for n, sign in zip(names, signs, strict=True) if sign < 0] == ["base.com_y"]
    assert MIRROR.privileged.index[8:].tolist() == list(range(8, 8 + len(names)))
