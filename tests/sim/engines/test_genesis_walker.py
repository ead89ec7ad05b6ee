"""A robot with a floating base in Genesis: MuJoCo's motion, weight and views, and every parameter that acts on it.

All tests share one engine of N robots, as in test_genesis.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.interface.rotation import rotate_back
from robot_rl.robots import robots
from robot_rl.training.checkpoint import load_state, save_state
from sim.engines.genesis import GenesisEngine
from sim.engines.model import MAX_ACTION_DELAY
from sim.engines.mujoco import MujocoEngine
from sim.engines.trunk import NOMINAL as TRUNK
from sim.engines.trunk import trunk_inertia
from sim.env import TaskEnv
from sim.tasks import tasks

needs_genesis = pytest.mark.skipif(not find_spec("genesis"), reason="Genesis, whose import takes long, is not there")
pytestmark = [pytest.mark.timeout(600), needs_genesis]

N, G, DT = 6, 9.81, 0.005
TASK, GO2 = tasks.get("go2-velocity"), robots.get("go2")
SCENE = replace(TASK.scene, iterations=50, cone="elliptic", timestep=DT)
"""Solved to the end: with the task's few iterations, MuJoCo's dry friction differs from its own converged one."""
HOME, J = torch.tensor(GO2.home), len(GO2.joints)
NOMINAL = TRUNK | {
    "robot.action_delay": DT,
    "robot.stiffness_scale": 1.0,
    "robot.damping_scale": 1.0,
    "robot.strength_scale": 1.0,
    "robot.joint_friction": 0.1,
    "robot.armature_scale": 1.0,
    "robot.link_mass_scale": 1.0,
    "ground.friction": 1.0,
}
RANGES = {
    "base.mass_scale": [0.7, 0.85, 1.0, 1.15, 1.3, 1.5],
    "base.com_x": [-0.06, -0.03, 0.0, 0.02, 0.04, 0.06],
    "base.com_y": [-0.06, -0.03, 0.0, 0.02, 0.04, 0.06],
    "base.com_z": [-0.06, -0.03, 0.0, 0.02, 0.04, 0.06],
    "payload.mass": [0.0, 0.5, 1.0, 2.0, 3.0, 5.0],
    "robot.action_delay": [0.0, DT, 0.012, 0.02, 0.0333, MAX_ACTION_DELAY],
    "robot.stiffness_scale": [0.7, 0.85, 1.0, 1.1, 1.2, 1.4],
    "robot.damping_scale": [0.5, 0.75, 0.9, 1.0, 1.3, 2.0],
    "robot.strength_scale": [0.7, 0.85, 1.0, 1.1, 1.2, 1.4],
    "robot.joint_friction": [0.0, 0.05, 0.1, 0.2, 0.3, 0.5],
    "robot.armature_scale": [0.5, 0.7, 1.0, 1.4, 2.0, 3.0],
    "robot.link_mass_scale": [0.5, 0.8, 1.0, 1.2, 1.5, 2.0],
}
"""What moves a robot in the air."""
LIMITS = {
    "joint_position": 1e-5,
    "joint_velocity": 1e-3,
    "base_position": 1e-4,
    "base_quat": 1e-5,
    "base_velocity": 1e-4,
    "base_angular_velocity": 1e-4,
    "joint_torque": 1e-4,
}
"""Of the RMSE of views in free fall. Without feet: MuJoCo's sensors are a physics step old, here they are not."""


@pytest.fixture(scope="module")
def built() -> Iterator[GenesisEngine]:
    one = GenesisEngine(GO2, SCENE, N, device="cpu")
    yield one
    one.close()


@pytest.fixture
def engine(built: GenesisEngine) -> GenesisEngine:
    """Nominal robots at home on the ground."""
    for name, value in NOMINAL.items():
        built.parameters[name](np.arange(N), np.full(N, value))
    place(built)
    return built


@pytest.fixture(scope="module")
def other() -> MujocoEngine:
    return MujocoEngine(GO2, SCENE, N, threads=1)


def place(engine: Any, ids: Any = range(N)) -> None:
    ids = np.array(list(ids))
    engine.reset(ids, np.tile(GO2.home, (len(ids), 1)), {})


def lift(engine: Any, qpos: np.ndarray) -> None:
    """Put all robots at rest at positions (N, nq)."""
    if isinstance(engine, GenesisEngine):
        engine._put(torch.arange(N), qpos)
    else:
        engine.qpos[:] = qpos


def hold(engine: Any, ticks: int, offset: Any = 0.0) -> None:
    target = (HOME + torch.as_tensor(offset)).expand(engine.num_envs, ticks, J)
    engine.step(target, torch.zeros(engine.num_envs, ticks, 0))


def give(engine: Any, **values: Any) -> None:
    """Set parameters, one value for each environment, and reset: underscores for the first dot."""
    for name, each in values.items():
        engine.parameters[name.replace("_", ".", 1)](np.arange(N), np.array(each, float))
    place(engine)


def way(seconds: float = 1.0) -> Tensor:
    """Smooth targets (T, J) that stay below the torque limits of all motors."""
    time = DT * torch.arange(1, round(seconds / DT) + 1)[:, None]
    size = 0.4 * torch.tensor([1.0, -1.0, 0.7, -0.6, 1.0, -0.8, 0.5, 0.9, 0.9, -1.0, 0.6, -0.5])
    rate = torch.linspace(0.5, 1.6, J)
    return HOME + size * (1 - torch.cos(2 * torch.pi * rate * time)) / 2


# ---- against MuJoCo ----------------------------------------------------------------------------------------------
def fall(one: Any, name: str) -> dict[str, Tensor]:
    """Views (T, N, ...) of a second of free fall with moving legs; every environment another value of a parameter."""
    for nominal, value in NOMINAL.items():
        one.parameters[nominal](np.arange(N), np.full(N, value))
    give(one, **{name.replace(".", "_", 1): RANGES[name]})
    qpos = np.array(one.qpos)
    qpos[:, 2] = 20.0
    lift(one, qpos)
    path = []
    for target in way().split(4):
        one.step(target.expand(N, -1, -1), torch.zeros(N, len(target), 0))
        path.append(one.views())
    return {view: torch.stack([views[view] for views in path]) for view in path[0]}


@pytest.mark.parametrize("name", RANGES)
def test_a_falling_robot_moves_as_in_mujoco(engine: GenesisEngine, other: MujocoEngine, name: str) -> None:
    ours, theirs = fall(engine, name), fall(other, name)
    rmse = {view: float((ours[view] - theirs[view]).square().mean((0, 2)).sqrt().max()) for view in ours}
    assert all(rmse[view] < limit for view, limit in LIMITS.items()), rmse
    view = "base_quat" if name in TRUNK else "joint_position"
    effect = (theirs[view][:, -1] - theirs[view][:, 0]).square().mean().sqrt()
    assert effect > 20 * rmse[view], "the parameter moves the robot by far more than the engines differ"


def test_also_with_the_few_iterations_of_the_task() -> None:
    """Then it is MuJoCo whose dry friction is not the converged one, by up to 1.5e-3 rad at 0.5 N m."""
    ours, theirs = (
        fall(kind(GO2, TASK.scene, N, threads=1, device="cpu"), "payload.mass")["joint_position"]
        for kind in (GenesisEngine, MujocoEngine)
    )
    assert (ours - theirs).square().mean((0, 2)).sqrt().max() < 1e-3


def test_a_standing_robot_weighs_and_stands_as_in_mujoco(engine: GenesisEngine, other: MujocoEngine) -> None:
    give(other, **{name.replace(".", "_", 1): [value] * N for name, value in NOMINAL.items()})
    for one in (engine, other):
        hold(one, 400)
    ours, theirs = engine.views(), other.views()
    assert (ours["base_position"] - theirs["base_position"]).abs().max() < 0.01
    assert ours["foot_force"].sum(1).tolist() == pytest.approx([weight(engine)] * N, rel=0.02)
    assert (ours["foot_force"] - theirs["foot_force"]).abs().max() < 0.05 * weight(engine)
    assert (ours["foot_position"] - theirs["foot_position"]).abs().max() < 0.01
    assert (ours["joint_torque"] - theirs["joint_torque"]).abs().max() < 0.3
    assert {k: (v.dtype, v.shape) for k, v in ours.items()} == {k: (v.dtype, v.shape) for k, v in theirs.items()}


def weight(engine: Any) -> float:
    return float(engine.model.body_mass.sum() * G)


def test_views_are_those_of_mujoco_at_the_same_state(engine: GenesisEngine) -> None:
    """A tumbling robot: frames of velocities, order of feet and joints."""
    model, rng = engine.model, np.random.default_rng(0)
    data, qpos, qvel = mujoco.MjData(model), engine.qpos, rng.normal(size=(N, model.nv))
    qpos[:, :3] += [1.0, -2.0, 3.0]
    qpos[:, 3:7] = rng.normal(size=(N, 4))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    engine._put(torch.arange(N), qpos)
    ordered = torch.empty(N, model.nv)
    ordered[:, engine.world.dofs] = torch.from_numpy(qvel).float()
    engine.solver.set_dofs_velocity(ordered)
    views = engine.views()
    for i in range(N):
        data.qpos[:], data.qvel[:] = qpos[i], qvel[i]
        mujoco.mj_forward(model, data)
        quat, speed = torch.from_numpy(qpos[i, 3:7]).double(), torch.from_numpy(qvel[i])
        wanted = {
            "base_position": qpos[i, :3],
            "base_quat": qpos[i, 3:7],
            "base_velocity": rotate_back(quat, speed[:3]),
            "base_angular_velocity": qvel[i, 3:6],
            "joint_position": qpos[i, 7:],
            "joint_velocity": qvel[i, 6:],
        }
        for kind in ("position", "velocity"):
            wanted[f"foot_{kind}"] = np.concatenate([data.sensor(f"{f}.{kind}").data for f in GO2.base.feet])
        for view, value in wanted.items():
            assert views[view][i].numpy() == pytest.approx(np.asarray(value), abs=2e-5), view
    assert torch.equal(views["foot_force"], torch.zeros(N, 4))


def test_the_task_runs() -> None:
    env = TaskEnv("go2-velocity", N, engine="genesis", device="cpu")
    observation, _ = env.reset(seed=0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        observation, reward, *_ = env.step(torch.rand(N, J, generator=generator) - 0.5)
        assert all(o.isfinite().all() for o in observation.values()) and reward.isfinite().all()
    assert env.divergences == 0 and env.simulation == {"engine": "genesis", "device": "cpu", "without": []}
    env.close()


# ---- motion and resets -------------------------------------------------------------------------------------------
def test_a_reset_robot_is_upright_at_its_height_and_at_rest(engine: GenesisEngine) -> None:
    hold(engine, 100, 0.3)
    place(engine)
    views = engine.views()
    assert views["base_position"].numpy() == pytest.approx(np.tile([0, 0, GO2.base.height], (N, 1)), abs=1e-6)
    assert views["base_quat"].tolist() == [[1, 0, 0, 0]] * N
    assert torch.allclose(views["joint_position"], HOME.expand(N, J), atol=1e-6)
    still = ("base_velocity", "base_angular_velocity", "joint_velocity", "foot_velocity", "foot_force", "joint_torque")
    assert all(not views[name].any() for name in still)


@pytest.mark.parametrize("kind", ["engine", "other"])
def test_feet_are_those_of_the_posture_right_after_a_reset(kind: str, request: pytest.FixtureRequest) -> None:
    """In both engines, before any physics step: the first observation of an episode is from that episode."""
    one: Any = request.getfixturevalue(kind)
    hold(one, 60, 0.4)
    before = one.foot_state()
    ids, folded = np.array([4, 1]), np.tile([0.0, 1.36, -2.65], 4)
    joints = np.stack([folded, folded + np.random.default_rng(0).uniform(-0.05, 0.05, J)])
    one.reset(ids, joints, {})
    feet, data = one.foot_state(), mujoco.MjData(one.model)
    for i, posture in zip(ids, joints, strict=True):
        data.qpos[:3], data.qpos[3:7] = [0, 0, GO2.base.height], [1, 0, 0, 0]
        data.qpos[[one.model.joint(name).qposadr[0] for name in GO2.joint_names]] = posture
        mujoco.mj_kinematics(one.model, data)
        wanted = np.concatenate([data.body(foot).xpos for foot in GO2.base.feet])
        assert feet["foot_position"][i].numpy() == pytest.approx(wanted, abs=1e-3)
        assert wanted[2::3].min() > 2 * GO2.base.foot_radius, "in the air"
    assert not feet["foot_velocity"][ids].any() and not feet["foot_force"][ids].any()
    rest = [0, 2, 3, 5]
    assert all(torch.equal(feet[name][rest], before[name][rest]) for name in feet)
    assert before["foot_velocity"].abs().max(1).values.min() > 0.01, "all of them moved"


def test_a_partial_reset_leaves_the_others(engine: GenesisEngine) -> None:
    """Also with new masses, inertias, frictions and gains in the environments that are reset."""
    hold(engine, 40, 0.1)
    state = engine.state_dict()
    hold(engine, 40, -0.1)
    wanted = engine.qpos, engine.qvel
    engine.load_state_dict(state)
    ids = np.array([4, 1])
    for name, values in (RANGES | {"ground.friction": [0.3, 0.4]}).items():
        engine.parameters[name](ids, np.array(values[:2]))
    place(engine, ids)
    hold(engine, 40, -0.1)
    rest = [0, 2, 3, 5]
    assert all(np.array_equal(a[rest], b[rest]) for a, b in zip(wanted, (engine.qpos, engine.qvel), strict=True))
    assert not np.array_equal(engine.qpos[ids], wanted[0][ids])


def test_an_episode_forgets_the_one_before(engine: GenesisEngine) -> None:
    ends = []
    for wild in (0.0, 0.4):
        hold(engine, 60, wild)
        give(engine, **{name.replace(".", "_", 1): values[::-1] for name, values in RANGES.items()})
        hold(engine, 20, wild)
        give(engine, **{name.replace(".", "_", 1): values for name, values in RANGES.items()})
        hold(engine, 60, 0.1)
        ends.append(engine.qpos)
    assert np.array_equal(*ends)


def test_a_push_adds_to_the_trunks_velocity(engine: GenesisEngine) -> None:
    qpos = engine.qpos
    qpos[:, 2] = 5.0
    qpos[:, 3:7] = [np.cos(0.5), 0, 0, np.sin(0.5)]  # turned, for the push is in the world
    engine._put(torch.arange(N), qpos)
    hold(engine, 10)
    before, wanted = engine.qvel[:, :6], np.array([[0.3, -0.4, 0.0], [-0.1, 0.2, 0.05]])
    velocity = torch.zeros(N, 3, dtype=torch.double)
    velocity[[3, 0]] = torch.from_numpy(wanted)
    engine.push(velocity)
    change = engine.qvel[:, :6] - before
    assert change[[3, 0], :3] == pytest.approx(wanted, abs=1e-6)
    assert not change[[1, 2, 4, 5]].any() and not change[:, 3:].any()
    hold(engine, 1)
    assert engine.qpos[3, :2] - qpos[3, :2] == pytest.approx(DT * wanted[0, :2], abs=5e-4)


def test_one_robot_that_blows_up_stops_no_other(engine: GenesisEngine) -> None:
    hold(engine, 30, 0.1)
    wanted = engine.qpos
    place(engine)
    broken = engine.solver.get_qpos()[2:3].clone()
    broken[0, 9] = torch.nan
    engine.solver.set_qpos(broken, envs_idx=[2])
    hold(engine, 30, 0.1)
    assert engine.diverged().tolist() == [i == 2 for i in range(N)]
    assert np.array_equal(engine.qpos[[0, 1, 3, 4, 5]], wanted[[0, 1, 3, 4, 5]])
    place(engine)
    hold(engine, 30, 0.1)
    assert not engine.diverged().any() and np.array_equal(engine.qpos, wanted)


def test_a_resumed_engine_goes_on_with_the_same_floats(engine: GenesisEngine, tmp_path: Path) -> None:
    """Through a file, and in another engine, with contacts, delays and parameters, also one that waits for a reset."""
    give(engine, **{name.replace(".", "_", 1): values for name, values in RANGES.items()})
    hold(engine, 15, 0.1)
    engine.parameters["base.mass_scale"](np.array([0]), np.array([1.7]))
    save_state(engine.state_dict(), tmp_path / "state")
    another, ends = GenesisEngine(GO2, SCENE, N, device="cpu"), []
    another.load_state_dict(load_state(tmp_path / "state"))
    assert all(torch.equal(a, b) for a, b in zip(engine.views().values(), another.views().values(), strict=True))
    for one in (engine, another):
        hold(one, 20, -0.1)
        place(one, [0])
        hold(one, 20, -0.1)
        ends.append(np.concatenate([one.qpos, one.qvel], 1))
    assert np.array_equal(*ends)
    another.close()


# ---- parameters --------------------------------------------------------------------------------------------------
def test_every_parameter_is_declared_and_has_a_nominal_value(engine: GenesisEngine) -> None:
    assert set(engine.parameters) == GenesisEngine.can_randomize(GO2, SCENE) == set(NOMINAL)
    assert set(RANGES) == set(NOMINAL) - {"ground.friction"}


def test_masses_are_weight(engine: GenesisEngine) -> None:
    scale, load, links = [1.0, 0.7, 1.4, 1.0, 1.0, 1.2], [0.0, 0.0, 0.0, 3.0, 0.0, 1.5], [1.0, 1.0, 1.0, 1.0, 1.6, 0.8]
    give(engine, base_mass_scale=scale, payload_mass=load, robot_link_mass_scale=links)
    hold(engine, 400)
    trunk = engine.model.body("base").mass[0]
    legs = engine.model.body_mass.sum() - trunk
    wanted = [G * (trunk * s + legs * k + m) for s, m, k in zip(scale, load, links, strict=True)]
    assert engine.foot_state()["foot_force"].sum(1).tolist() == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(("name", "axis"), [("base_com_x", 0), ("base_com_y", 1)])
def test_the_centre_of_mass_is_where_the_feet_carry(engine: GenesisEngine, name: str, axis: int) -> None:
    shift = np.array([-0.04, -0.02, 0.0, 0.01, 0.02, 0.04])
    give(engine, **{name: shift}, robot_stiffness_scale=[3.0] * N)
    hold(engine, 600)
    views = engine.views()
    force, foot = views["foot_force"], views["foot_position"].unflatten(1, (-1, 3))[..., axis]
    carried = ((force * foot).sum(1) / force.sum(1) - views["base_position"][:, axis]).numpy()
    share = engine.model.body("base").mass[0] / engine.model.body_mass.sum()
    assert carried - carried[2] == pytest.approx(share * shift, rel=0.15, abs=5e-4)


def test_the_trunks_mass_and_inertia_are_those_of_all_its_parameters(engine: GenesisEngine) -> None:
    values = {name: np.array(RANGES[name]) for name in TRUNK}
    give(engine, **{name.replace(".", "_", 1): each for name, each in values.items()})
    body, axes = engine.model.body("base"), np.zeros(9)
    mujoco.mju_quat2Mat(axes, body.iquat)
    turn = axes.reshape(3, 3)
    mass, centre, inertia = trunk_inertia(body.mass[0], body.ipos, turn @ np.diag(body.inertia) @ turn.T, values)
    link = [engine.world.body.get_link("base").idx]
    assert engine.solver.get_links_mass(link)[:, 0].numpy() == pytest.approx(mass, rel=1e-5)
    assert engine.solver.get_links_COM(link)[:, 0].numpy() == pytest.approx(centre, abs=1e-6)
    given = np.linalg.eigvalsh(engine.solver.get_links_inertia(link)[:, 0].numpy())
    assert given == pytest.approx(np.linalg.eigvalsh(inertia), rel=1e-4)


def test_friction_of_the_ground_brakes_a_sliding_robot(engine: GenesisEngine) -> None:
    friction = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 1.0])
    give(engine, ground_friction=friction)
    hold(engine, 200)
    speed = torch.zeros(N, engine.solver.n_dofs)
    speed[:, engine.world.dofs[1]] = 1.0  # all of the robot slides to the left
    engine.solver.set_dofs_velocity(speed)
    hold(engine, 30)
    slower = 1.0 - engine.qvel[:, 1]
    assert slower[:4] == pytest.approx(friction[:4] * G * 30 * DT, rel=0.2)
    assert (np.diff(slower) > 0).all()


def test_stiffness_and_strength_are_torque_and_its_limit(engine: GenesisEngine) -> None:
    stiffness, strength = [0.5, 1.0, 2.0, 1.0, 1.0, 0.8], [1.0, 1.0, 1.0, 0.6, 1.3, 1.2]
    give(engine, robot_stiffness_scale=stiffness, robot_strength_scale=strength)
    effort, gain = GO2.limit("effort"), GO2.limit("stiffness")
    for offset in (0.1, 10.0):
        place(engine)
        qpos = engine.qpos
        qpos[:, 2] = 5.0
        lift(engine, qpos)
        hold(engine, 2, offset)  # in the first, the delay line still holds the posture
        for i in range(N):
            wanted = strength[i] * (gain * offset * stiffness[i]).minimum(effort)
            assert engine.joint_torque()[i].tolist() == pytest.approx(wanted.tolist(), rel=1e-4), (offset, i)


def test_damping_and_armature_are_in_the_solver(engine: GenesisEngine) -> None:
    """Their effect on motion is compared with MuJoCo's above; here, that nothing else changes them."""
    give(engine, robot_damping_scale=RANGES["robot.damping_scale"], robot_armature_scale=RANGES["robot.armature_scale"])
    damping = np.outer(RANGES["robot.damping_scale"], GO2.limit("damping"))
    assert engine.solver.get_dofs_kv(engine.world.joints).numpy() == pytest.approx(damping, rel=1e-5)
    armature = np.repeat(0.01 * np.array(RANGES["robot.armature_scale"])[:, None], J, 1)
    assert engine.solver.get_dofs_armature(engine.world.joints).numpy() == pytest.approx(armature, rel=1e-5)
