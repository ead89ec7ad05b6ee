"""A walking robot in MuJoCo beside its parameters: views, resets, servos."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.rotation import rotate_back
from robot_rl.robots.go2 import GO2
from sim.engines.mujoco import MujocoEngine
from sim.scenes import Camera, Scene

SCENE = Scene(cameras=(Camera("side", (0.3, -1.6, 0.5), (0.0, 0.0, -0.05), follows=True),), impratio=1.0)
HOME = torch.tensor(GO2.home)


def build(n: int = 2) -> MujocoEngine:
    one = MujocoEngine(GO2, SCENE, n, threads=1)
    one.reset(np.arange(n), np.tile(GO2.home, (n, 1)), {})
    return one


def step(one: MujocoEngine, ticks: int, seed: int = 0, size: float = 0.3) -> None:
    noise = size * torch.randn(one.num_envs, 12, generator=torch.Generator().manual_seed(seed))
    one.step((HOME + noise)[:, None].expand(-1, ticks, -1), torch.zeros(one.num_envs, ticks, 1))


def test_views_are_the_named_ones_of_a_state() -> None:
    one = build(3)
    step(one, 2)
    sizes = {name: tuple(view.shape) for name, view in one.views().items()}
    assert sizes == {
        "joint_position": (3, 12), "joint_velocity": (3, 12), "joint_torque": (3, 12),
        "base_position": (3, 3), "base_quat": (3, 4), "base_velocity": (3, 3), "base_angular_velocity": (3, 3),
        "foot_position": (3, 12), "foot_velocity": (3, 12), "foot_force": (3, 4),
    }  # fmt: skip
    assert all(view.dtype == torch.float32 for view in one.views().values())


def test_velocities_are_the_derivatives_of_the_poses() -> None:
    one = build(1)
    one.qpos[0, 2] = 3.0  # in the air, where nothing stops a foot at once
    step(one, 30, size=0.5)
    before, feet = one.base_state(), one.foot_state()
    step(one, 1, size=0.5)
    after, dt = one.base_state(), one.scene.timestep
    moved = (after["base_position"] - before["base_position"]) / dt
    assert torch.allclose(rotate_back(after["base_quat"], moved), after["base_velocity"], atol=0.02)
    w, x, y, z = before["base_quat"][0].double()
    conjugate = torch.tensor([[w, x, y, z], [-x, w, z, -y], [-y, -z, w, x], [-z, y, -x, w]])
    turned = conjugate @ after["base_quat"][0].double()
    assert (2 * turned[1:] / dt).tolist() == pytest.approx(after["base_angular_velocity"][0].tolist(), abs=0.02)
    later = one.foot_state()
    moved = (later["foot_position"] - feet["foot_position"]) / dt
    mean = (later["foot_velocity"] + feet["foot_velocity"]) / 2
    assert torch.allclose(moved, mean, atol=0.15) and mean.abs().max() > 0.2


def test_feet_are_named_in_the_order_of_the_spec() -> None:
    """Front left, front right, rear left, rear right; x forward, y to the left."""
    one = build(1)
    step(one, 1, size=0.0)
    place = one.foot_state()["foot_position"].view(4, 3)
    assert (place[:, 0] > 0).tolist() == [True, True, False, False]
    assert (place[:, 1] > 0).tolist() == [True, False, True, False]
    one.qpos[0, 7 + 3 * 2 + 2] -= 0.8  # the calf of the rear left leg
    step(one, 1, size=0.0)
    lifted = one.foot_state()["foot_position"].view(4, 3)[:, 2] - place[:, 2]
    assert int(lifted.argmax()) == 2 and lifted[2] > 0.02


def test_a_reset_robot_stands_and_stays() -> None:
    one = build(2)
    step(one, 60, size=0.6)
    one.reset(np.array([1]), np.array([GO2.home]), {})
    assert GO2.base is not None
    state = one.base_state()
    assert state["base_position"][1].tolist() == pytest.approx([0, 0, GO2.base.height])
    assert state["base_quat"][1].tolist() == [1, 0, 0, 0] and not state["base_velocity"][1].any()
    for _ in range(20):
        step(one, 20, size=0.0)
        standing = one.base_state()
        assert float(standing["base_position"][1, 2]) == pytest.approx(GO2.base.height, abs=0.08)
        assert float(standing["base_quat"][1, 0]) > 0.99
    assert standing["base_velocity"][1].abs().max() < 0.02


def test_a_reset_forgets_forces_and_torques_of_the_episode_before() -> None:
    """The first observation of an episode must not depend on what was before it, or on other simulations."""
    used, fresh = build(3), build(3)
    step(used, 50, size=0.6)
    for one in (used, fresh):
        one.reset(np.arange(3), np.tile(GO2.home, (3, 1)), {})
    for name, view in fresh.views().items():
        assert torch.equal(used.views()[name], view), name
    step(used, 30, size=0.6)
    used.reset(np.array([1]), np.array([GO2.home]), {})
    for name, view in fresh.views().items():
        assert torch.equal(used.views()[name][1], view[1]), name


@pytest.mark.parametrize("threads", [1, 2])
def test_the_feet_carry_what_the_posture_presses_right_after_a_reset(threads: int) -> None:
    """Also with a heavier trunk and shifted joints: what a simulation of its own finds in the same posture."""
    one = MujocoEngine(GO2, SCENE, 3, threads=threads)
    one.reset(np.arange(3), np.tile(GO2.home, (3, 1)), {})
    step(one, 40, size=0.6)
    assert GO2.base is not None
    for name, value in (("base.mass_scale", 1.3), ("payload.mass", 2.0), ("ground.friction", 0.7)):
        one.parameters[name](np.array([2, 0]), np.array([value, 1.0]))
    joints = np.array(GO2.home) + np.array([[0.0] * 12, [0.0, -0.02, 0.04] * 4])
    before = one.foot_state()
    one.reset(np.array([2, 0]), joints, {})
    feet = one.foot_state()
    for i in (0, 2):
        model, data = one.batch.get_model(i), one.batch.get_data(i)
        mujoco.mj_forward(model, data)
        wanted = [data.sensor(f"{foot}.force").data[0] for foot in GO2.base.feet]
        assert feet["foot_force"][i].tolist() == pytest.approx(wanted, rel=1e-6)
        assert sum(wanted) > 10, "it touches the ground"
    assert all(torch.equal(feet[name][1], before[name][1]) for name in feet)
    assert not one.joint_torque()[[0, 2]].any(), "no motor has turned yet"


def test_a_partial_reset_leaves_the_others() -> None:
    one, other = build(3), build(3)
    for e in (one, other):
        step(e, 20)
    one.reset(np.array([1]), np.array([GO2.home]), {})
    kept = one.views()
    for name, view in other.views().items():
        assert torch.equal(kept[name][[0, 2]], view[[0, 2]]), name
    for e in (one, other):
        step(e, 20, seed=1)
    assert np.array_equal(one.qpos[[0, 2]], other.qpos[[0, 2]])


def test_views_are_copies() -> None:
    one = build(1)
    step(one, 5)
    views = one.views()
    before = {name: view.clone() for name, view in views.items()}
    step(one, 20, seed=3)
    assert all(torch.equal(views[name], view) for name, view in before.items())


def test_the_torque_is_the_springs() -> None:
    one = build(1)
    step(one, 10, size=0.0)
    position, velocity = one.joint_state()
    step(one, 1, size=0.0)
    wanted = GO2.limit("stiffness") * (HOME - position) - GO2.limit("damping") * velocity
    assert torch.allclose(one.joint_torque(), wanted, atol=1e-4)


def test_a_camera_follows_the_trunk() -> None:
    one = build(1)
    one.qpos[0, :3] = [7.0, -9.0, 30.0]  # far above the ground, where a fixed camera sees nothing
    assert one.render(0, "side", 48, 64).std() > 5
    fixed = MujocoEngine(GO2, Scene(cameras=(Camera("side", (0.3, -1.6, 0.5), (0.0, 0.0, 0.2)),)), 1, threads=1)
    fixed.qpos[0, :3] = [7.0, -9.0, 30.0]
    assert np.abs(fixed.render(0, "side", 48, 64).astype(int) - one.render(0, "side", 48, 64)).mean() > 5
