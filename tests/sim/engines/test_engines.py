"""Contract of all engines with an arm and a legged robot, and agreement of Genesis and MuJoCo Warp with MuJoCo.

Genesis compiles each type of scene for up to a minute and MuJoCo Warp for two, when first used, so all tests of a robot
share one engine of N environments.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.interface.rotation import quat_to_matrix, rotate_back, rotation_error
from robot_rl.robots import robots
from robot_rl.training.checkpoint import load_state, save_state
from sim.engines.genesis import GenesisEngine
from sim.engines.model import MAX_ACTION_DELAY
from sim.engines.mujoco import MujocoEngine
from sim.engines.warp import WarpEngine
from sim.objects import Box
from sim.parameters import TRUNK, nominal
from sim.scenes import Camera, Scene
from sim.tasks import tasks

N, G, DT = 6, 9.81, 0.005
ALL = np.arange(N)
Hold = Callable[..., None]
ROBOTS = {name: robots.get(name) for name in ("panda", "ur5e", "go2")}
SCENES = {
    "panda": Scene((Box("cube", size=0.02, mass=0.1),), (Camera("front", (1.15, 0.0, 0.55), (0.45, 0.0, 0.1)),)),
    "ur5e": tasks.get("ur5e-reach").scene,
    # With the task's 4 iterations, MuJoCo's dry friction does not converge.
    "go2": replace(tasks.get("go2-velocity").scene, iterations=50, timestep=DT),
}
DELAY, FRICTION, ARMATURE = "robot.action_delay", "robot.joint_friction", "robot.armature_scale"
STIFFNESS, DAMPING, STRENGTH = (f"robot.{name}_scale" for name in ("stiffness", "damping", "strength"))
LINKS = "robot.link_mass_scale"
ARM = {DELAY: DT, FRICTION: 0.0} | dict.fromkeys((STIFFNESS, DAMPING, STRENGTH, ARMATURE), 1.0)
LEGGED = {name: nominal(name) for name in TRUNK} | ARM | {FRICTION: 0.1, LINKS: 1.0, "ground.friction": 1.0}
NOMINAL = {"panda": ARM | {"cube.mass": 0.1, "cube.friction": 1.0}, "ur5e": ARM, "go2": LEGGED}
VARIATIONS: dict[str, list[list[tuple[str, float]]]] = {
    "panda": [
        [(DELAY, MAX_ACTION_DELAY), (DELAY, 0.012), (STIFFNESS, 0.5), (STIFFNESS, 2.0), (DAMPING, 0.5)],
        [(DAMPING, 2.0), (STRENGTH, 1.3), (FRICTION, 1.5), (ARMATURE, 0.5), (ARMATURE, 3.0)],
    ],
    "ur5e": [[(DELAY, 0.02), (DELAY, MAX_ACTION_DELAY), (STIFFNESS, 0.75), (DAMPING, 1.3), (FRICTION, 2.0)]],
    "go2": [
        [("base.mass_scale", 0.7), ("base.com_x", 0.06), ("base.com_y", -0.06), ("base.com_z", 0.06),
         ("payload.mass", 5.0)],
        [(DELAY, 0.0333), (STIFFNESS, 0.7), (DAMPING, 2.0), (STRENGTH, 1.4), (LINKS, 2.0)],
        [(FRICTION, 0.5), (ARMATURE, 3.0), (ARMATURE, 0.5), ("base.mass_scale", 1.5), (LINKS, 0.5)],
    ],
}  # fmt: skip
"""Parameter values of environments 1 to 5, by robot and run; environment 0 is nominal."""
MOTIONS = {
    "panda": ([0.3, -0.2, 0.3, 0.2, -0.3, 0.3, 0.2], [0.5, 0.7, 0.6, 0.9, 1.0, 1.1, 1.2]),
    "ur5e": ([0.5, -0.3, 0.4, 0.5, -0.5, 0.8], [0.5, 0.7, 0.6, 0.9, 1.0, 1.1]),
    "go2": ([0.4, -0.4, 0.28, -0.24, 0.4, -0.32, 0.2, 0.36, 0.36, -0.4, 0.24, -0.2], np.linspace(0.5, 1.6, 12)),
}
"""Amplitude, rad, and frequency, Hz, of each joint's motion, below the torque limits of all motors."""
LIMITS = {
    "joint_position": 1e-5, "joint_velocity": 1e-3, "base_position": 1e-4, "base_quat": 1e-5, "base_velocity": 1e-4,
    "base_angular_velocity": 1e-4, "joint_torque": 1e-4,
}  # fmt: skip
"""RMSE between the engines. Without feet: MuJoCo's sensors are a physics step old, those of Genesis are not."""
pytestmark = pytest.mark.timeout(600)
KINDS: dict[str, Any] = {"mujoco": MujocoEngine, "genesis": GenesisEngine, "warp": WarpEngine}
NEEDS = {"genesis": "genesis", "warp": "mujoco_warp"}
"""Packages of the engines that are optional."""


def make(kind: str, robot: str) -> Any:
    engine = KINDS[kind]
    return engine(ROBOTS[robot], SCENES[robot], N, threads=1, device="cpu")


def needs(kind: str) -> Any:
    """Return a mark that skips a test if the package of an engine is not installed."""
    package = NEEDS.get(kind)
    return pytest.mark.skipif(bool(package) and not find_spec(package or ""), reason=f"{package} is not installed")


def on(kinds: str, names: str) -> list[Any]:
    """Return the parameters of `engine` for these engines and robots."""
    return [
        pytest.param((kind, robot), id=f"{kind}-{robot}", marks=needs(kind))
        for kind in kinds.split() for robot in names.split()
    ]  # fmt: skip


arms = pytest.mark.parametrize("engine", on("mujoco genesis warp", "panda"), indirect=True)
legged = pytest.mark.parametrize("engine", on("mujoco genesis warp", "go2"), indirect=True)


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[Any, Any]]:
    built: dict[Any, Any] = {}
    yield built
    for engine in built.values():
        engine.close()


@pytest.fixture(params=on("mujoco genesis warp", "panda go2"))
def engine(request: pytest.FixtureRequest, engines: dict[Any, Any]) -> Any:
    """Nominal robots at home, with cubes to their left."""
    engine = engines[request.param] = engines.get(request.param) or make(*request.param)
    gravity(engine, (0.0, 0.0, -G))
    set_nominal(engine)
    reset(engine)
    return engine


def set_nominal(engine: Any) -> None:
    for name, value in NOMINAL[engine.robot.name].items():
        engine.parameters[name](ALL, np.full(N, value))


def reset(engine: Any, ids: Any = ALL, cube: tuple[float, ...] = (0.5, 0.15, 0.02)) -> None:
    poses = {o.name: np.tile([*cube, 1.0, 0, 0, 0], (len(ids), 1)) for o in engine.scene.objects}
    engine.reset(np.array(ids), np.tile(engine.robot.home, (len(ids), 1)), poses)


def put(engine: Any, qpos: np.ndarray, ids: Any = ALL) -> None:
    """Set positions (k, nq)."""
    if isinstance(engine, GenesisEngine):
        engine._put(torch.as_tensor(ids), qpos)
    elif isinstance(engine, WarpEngine):
        engine.state["qpos"][ids] = torch.from_numpy(qpos).float()
    else:
        engine.qpos[ids] = qpos


def drop(engine: Any, height: float = 20.0) -> None:
    """Move legged robots into the air."""
    if engine.robot.base:
        qpos = np.array(engine.qpos)
        qpos[:, 2] = height
        put(engine, qpos)


def gravity(engine: Any, vector: Any) -> None:
    if isinstance(engine, GenesisEngine):
        engine.solver.set_gravity(tuple(vector))
    elif isinstance(engine, WarpEngine):
        engine.world.field("opt.gravity")[:] = torch.tensor(vector)
    else:
        engine.batch.expand("opt.gravity")[:] = vector


def state(engine: Any) -> np.ndarray:
    """Return a copy of positions and velocities (N, nq + nv)."""
    return np.concatenate([engine.qpos, engine.qvel], 1)


def vary(engine: Any, ids: np.ndarray = ALL, k: int = 0) -> None:
    """Set every parameter to other values in each environment, effective from the next reset."""
    for name, value in NOMINAL[engine.robot.name].items():
        factor = 1 + 0.1 * ((ids + k) % 5 - 2)
        engine.parameters[name](ids, value * factor + (0.01 * factor if value == 0 else 0))


def follow(engine: Any, variations: list[tuple[str, float]]) -> dict[str, Tensor]:
    """Return views (T, N, ...) over 1 s of smooth targets in free space; environment k + 1 has variation k."""
    set_nominal(engine)
    for k, (name, value) in enumerate(variations, 1):
        engine.parameters[name](np.array([k]), np.array([value]))
    reset(engine)
    drop(engine)
    amplitude, frequency = (torch.as_tensor(x, dtype=torch.float32) for x in MOTIONS[engine.robot.name])
    tick = engine.scene.timestep
    time, path = tick * torch.arange(1, round(1 / tick) + 1)[:, None], []
    targets = torch.tensor(engine.robot.home) + amplitude * (1 - torch.cos(2 * torch.pi * frequency * time)) / 2
    for target in targets.split(5):
        engine.step(target.expand(N, -1, -1), torch.full((N, len(target), 1), 0.08))
        path.append(engine.views())
    return {view: torch.stack([views[view] for views in path]) for view in path[0]}


@pytest.mark.parametrize("engine", on("genesis warp", "panda ur5e go2"), indirect=True)
def test_a_robot_moves_as_in_mujoco(engine: Any) -> None:
    """Three model files; the UR5e without a gripper and with physics steps of 2 ms."""
    other = make("mujoco", engine.robot.name)
    for variations in VARIATIONS[engine.robot.name]:
        ours, theirs = follow(engine, variations), follow(other, variations)
        rmse = {view: (ours[view] - theirs[view]).square().mean((0, 2)).sqrt() for view in ours if view in LIMITS}
        assert all(rmse[view].max() < LIMITS[view] for view in rmse), rmse
        if isinstance(engine, WarpEngine):
            assert (ours["joint_position"] - theirs["joint_position"]).abs().max() < 1e-4
        for k, (name, _) in enumerate(variations, 1):
            view = "base_quat" if name in TRUNK else "joint_position"
            effect = (theirs[view][:, k] - theirs[view][:, 0]).square().mean().sqrt()
            assert effect > 20 * rmse[view].max(), f"{name} has an effect larger than the difference of the engines"


@pytest.mark.parametrize("engine", on("genesis warp", "go2"), indirect=True)
def test_a_robot_stands_as_in_mujoco(engine: Any, hold: Hold) -> None:
    other, weight = make("mujoco", "go2"), float(engine.model.body_mass.sum() * G)
    set_nominal(other)
    reset(other)
    for one in (engine, other):
        hold(one, 400)
    ours, theirs = engine.views(), other.views()
    assert ours["foot_force"].sum(1).tolist() == pytest.approx([weight] * N, rel=0.02)
    limits = {"base_position": 0.01, "foot_position": 0.01, "foot_force": 0.05 * weight, "joint_torque": 0.3}
    assert all((ours[name] - theirs[name]).abs().max() < limit for name, limit in limits.items())


def test_views_are_copies_with_the_names_and_shapes_of_a_state(engine: Any, hold: Hold) -> None:
    legs = {"base_position": 3, "base_quat": 4, "base_velocity": 3, "base_angular_velocity": 3, "foot_position": 12,
            "foot_velocity": 12, "foot_force": 4, "joint_torque": 12}  # fmt: skip
    sizes = dict.fromkeys(("joint_position", "joint_velocity"), len(engine.robot.joints))
    sizes |= legs if engine.robot.base else {"gripper_width": 1}
    hold(engine, 20, 0.1)
    views = engine.views() | {o.name: engine.object_pose(o.name) for o in engine.scene.objects}
    before = {name: view.clone() for name, view in views.items()}
    assert {name: tuple(view.shape) for name, view in engine.views().items()} == {k: (N, v) for k, v in sizes.items()}
    assert all(view.dtype == torch.float32 for view in views.values())
    hold(engine, 20, 0.2, width=0.0)
    assert all(torch.equal(views[name], view) for name, view in before.items())


@legged
def test_velocities_are_the_derivatives_of_the_poses(engine: Any, hold: Hold) -> None:
    drop(engine, 3.0)  # in the air, where contacts do not stop the feet
    offset = 0.3 * torch.randn(N, 1, 12, generator=torch.Generator().manual_seed(0))
    hold(engine, 30, offset)
    before = engine.views()
    hold(engine, 1, offset)
    after = engine.views()
    moved = (after["base_position"] - before["base_position"]) / DT
    assert torch.allclose(rotate_back(after["base_quat"], moved), after["base_velocity"], atol=0.02)
    turned = rotation_error(*(quat_to_matrix(views["base_quat"].double()) for views in (before, after))) / DT
    speed = rotate_back(after["base_quat"].double(), turned)
    assert torch.allclose(speed, after["base_angular_velocity"].double(), atol=0.02)
    moved = (after["foot_position"] - before["foot_position"]) / DT
    mean = (after["foot_velocity"] + before["foot_velocity"]) / 2
    assert torch.allclose(moved, mean, atol=0.15) and mean.abs().max() > 0.2


def test_a_diverged_environment_does_not_affect_the_others(engine: Any, hold: Hold) -> None:
    hold(engine, 30, 0.1)
    expected, rest = state(engine), [0, 1, 3, 4, 5]
    reset(engine)
    broken = np.array(engine.qpos[2:3])
    broken[0, engine.model.joint(engine.robot.joint_names[2]).qposadr[0]] = np.nan
    put(engine, broken, [2])
    hold(engine, 30, 0.1)  # Genesis checks every tenth step
    assert engine.diverged().tolist() == [i == 2 for i in range(N)]
    assert np.array_equal(state(engine)[rest], expected[rest])
    reset(engine)
    hold(engine, 30, 0.1)
    assert not engine.diverged().any() and np.array_equal(state(engine), expected)


def test_a_reset_robot_stands_still_with_the_longest_delay(engine: Any, hold: Hold) -> None:
    """Commands of the previous episode must not remain in the delay line."""
    home, base, gripper = torch.tensor(engine.robot.home), engine.robot.base, engine.robot.gripper
    engine.parameters[DELAY](ALL, np.full(N, MAX_ACTION_DELAY))
    reset(engine)
    hold(engine, 30, 0.2)
    reset(engine)
    views = engine.views()
    assert torch.allclose(views["joint_position"], home.expand(N, -1), atol=1e-6)
    if base:
        assert views["base_position"].numpy() == pytest.approx(np.tile([0, 0, base.height], (N, 1)), abs=1e-6)
        assert views["base_quat"].tolist() == [[1, 0, 0, 0]] * N
    still = ("base_velocity", "base_angular_velocity", "joint_velocity", "joint_torque")
    assert not any(views[name].any() for name in still if name in views)
    drop(engine)
    for _ in range(6):
        hold(engine, 5)
        position, velocity = engine.joint_state()
        assert torch.allclose(position, home.expand(N, -1), atol=1e-4) and velocity.abs().max() < 1e-2
        assert not gripper or engine.gripper_width().numpy() == pytest.approx(gripper.width, abs=1e-4)


def test_a_partial_reset_keeps_the_other_environments(engine: Any, hold: Hold) -> None:
    """With new masses, inertias, frictions and gains in the environments that are reset, in any order."""
    ids, rest = np.array([4, 1]), [0, 2, 3, 5]
    vary(engine, k=1)
    reset(engine)
    hold(engine, 40, 0.1)
    saved = engine.state_dict()
    hold(engine, 40, -0.1)
    expected = state(engine)
    engine.load_state_dict(saved)
    vary(engine, ids)
    objects = {o.name: np.array([[0.4, 0, y, 1, 0, 0, 0] for y in (0.05, 0.07)]) for o in engine.scene.objects}
    joints = np.array(engine.robot.home) + [[0.0], [0.02]]
    engine.reset(ids, joints, objects)
    assert engine.joint_state()[0][ids].numpy() == pytest.approx(joints, abs=1e-6)
    for name, poses in objects.items():
        assert engine.object_pose(name)[ids].numpy() == pytest.approx(poses, abs=1e-6)
    hold(engine, 40, -0.1)
    assert np.array_equal(state(engine)[rest], expected[rest]) and not np.array_equal(state(engine)[ids], expected[ids])


def test_an_episode_does_not_depend_on_the_previous_one(engine: Any, hold: Hold) -> None:
    """Contacts, warm starts, accelerations and parameters of the previous episode have no effect."""
    ends = []
    for wild in (0.0, 0.3):
        hold(engine, 40, wild, width=0.0)
        vary(engine, k=2)
        reset(engine)
        hold(engine, 20, wild)
        vary(engine)
        reset(engine, cube=(0.5, 0.15, 0.04))
        hold(engine, 60, 0.1)
        ends.append(state(engine))
    assert np.array_equal(*ends)


def test_a_resumed_engine_continues_bit_identically(engine: Any, hold: Hold, tmp_path: Path) -> None:
    """Through a file, with contacts, delayed commands, and parameters that wait for a reset."""
    vary(engine)
    reset(engine, cube=(0.5, 0.15, 0.021))
    hold(engine, 15, 0.1)
    engine.parameters[STIFFNESS](np.array([0]), np.array([1.3]))
    save_state(engine.state_dict(), tmp_path / "state")
    ends = []
    for _ in range(2):
        hold(engine, 20, -0.1, width=0.0)
        reset(engine, [0])
        hold(engine, 20, -0.1)
        ends.append(state(engine))
        vary(engine, k=3)
        reset(engine)
        hold(engine, 30, 0.3)
        engine.load_state_dict(load_state(tmp_path / "state"))
    assert np.array_equal(*ends)


@legged
def test_feet_are_those_of_the_posture_right_after_a_reset(engine: Any, hold: Hold) -> None:
    hold(engine, 60, 0.4)
    before, base, names = engine.foot_state(), engine.robot.base, engine.robot.joint_names
    ids, rest = np.array([4, 1]), [0, 2, 3, 5]
    joints = np.tile([0.0, 1.36, -2.65], (2, 4))  # folded, so that the feet are in the air
    joints[1] += np.random.default_rng(0).uniform(-0.05, 0.05, 12)
    engine.reset(ids, joints, {})
    feet, data = engine.foot_state(), mujoco.MjData(engine.model)
    for i, posture in zip(ids, joints, strict=True):
        data.qpos[:7] = [0, 0, base.height, 1, 0, 0, 0]
        data.qpos[[engine.model.joint(name).qposadr[0] for name in names]] = posture
        mujoco.mj_kinematics(engine.model, data)
        expected = np.concatenate([data.body(foot).xpos for foot in base.feet])
        assert feet["foot_position"][i].numpy() == pytest.approx(expected, abs=1e-3)
        assert expected[2::3].min() > 2 * base.foot_radius
    assert not feet["foot_velocity"][ids].any() and not feet["foot_force"][ids].any()
    assert all(torch.equal(feet[name][rest], before[name][rest]) for name in feet)
    assert before["foot_velocity"].abs().max(1).values.min() > 0.01


def test_all_parameters_are_declared(engine: Any) -> None:
    declared = engine.can_randomize(engine.robot, engine.scene)
    assert set(engine.parameters) == declared and declared - {"cube.size"} == set(NOMINAL[engine.robot.name])
    compared = {name for variations in VARIATIONS[engine.robot.name] for name, _ in variations}
    assert compared == {name for name in NOMINAL[engine.robot.name] if not name.startswith(("cube", "ground"))}


def test_action_delay_is_the_time_to_the_first_motion(engine: Any, hold: Hold) -> None:
    """Delays are rounded up to whole physics steps."""
    engine.parameters[DELAY](ALL, np.array([0.0, DT, 0.012, 0.02, 0.04, MAX_ACTION_DELAY]))
    reset(engine)
    drop(engine)
    joint, first = len(engine.robot.joints) - 1, [0] * N
    for tick in range(1, 25):
        hold(engine, 1, 0.1 * torch.eye(joint + 1)[joint])
        for i, speed in enumerate(engine.joint_state()[1][:, joint].abs()):
            first[i] = tick if not first[i] and speed > 1e-3 else first[i]
    assert [t - first[0] for t in first] == [0, 0, 2, 3, 7, 15] and 1 <= first[0] <= 2


@arms
def test_a_cube_slides_down_a_slope_by_its_friction(engine: Any, hold: Hold) -> None:
    coefficients, slope, time = [0.2, 0.4, 0.6, 0.9, 1.2, 1.4], np.arctan(0.8), 80 * DT
    engine.parameters["cube.friction"](ALL, np.array(coefficients))
    reset(engine)
    gravity(engine, (0.0, G * np.sin(slope), -G * np.cos(slope)))
    hold(engine, 80)
    moved = (engine.object_pose("cube")[:, 1] - 0.15).tolist()
    expected = [0.5 * time**2 * G * (np.sin(slope) - mu * np.cos(slope)) for mu in coefficients[:3]]
    assert moved[:3] == pytest.approx(expected, rel=0.12) and np.abs(moved[3:]).max() < 0.005


@arms
def test_a_placed_object_is_seen_and_the_robots_keep_their_state(engine: Any, hold: Hold) -> None:
    hold(engine, 10, 0.1)
    before, poses = engine.joint_state(), np.array([[0.5, 0.1 * i - 0.2, 0.02, 1, 0, 0, 0] for i in range(N)])
    engine.place("cube", poses)
    assert engine.object_pose("cube").numpy() == pytest.approx(poses, abs=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(before, engine.joint_state(), strict=True))
    first, other = (engine.render(i, "front", 48, 64) for i in (0, 3))
    assert first.shape == (48, 64, 3) and first.dtype == np.uint8
    assert np.abs(first.astype(int) - other.astype(int)).max() > 40


@legged
def test_a_push_adds_to_the_trunks_velocity_in_the_world(engine: Any, hold: Hold) -> None:
    qpos = np.array(engine.qpos)
    qpos[:, 2], qpos[:, 3:7] = 5.0, [np.cos(0.5), 0, 0, np.sin(0.5)]
    put(engine, qpos)
    hold(engine, 10)
    velocity, before = torch.zeros(N, 3, dtype=torch.double), state(engine)[:, 19:25]
    velocity[3], velocity[0] = torch.tensor([0.3, -0.4, 0.0]), torch.tensor([-0.1, 0.2, 0.05])
    engine.push(velocity)
    change = state(engine)[:, 19:25] - before
    assert change[:, :3] == pytest.approx(velocity.numpy(), abs=1e-6)
    assert not change[[1, 2, 4, 5]].any() and not change[:, 3:].any()
