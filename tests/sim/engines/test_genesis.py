"""The Genesis engine: MuJoCo's trajectories, its contracts, and every parameter that it claims.

Building a scene type compiles for a minute the first time on a machine; all tests share one engine of N robots.
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

from robot_rl.robots import robots
from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.util.errors import UnknownName, UserError
from sim.demonstrators import make_expert
from sim.engines.genesis import GenesisEngine
from sim.engines.genesis_world import start
from sim.engines.model import MAX_ACTION_DELAY
from sim.engines.mujoco import MujocoEngine
from sim.env import TaskEnv
from sim.randomization.checks import nominal
from sim.scenes import Camera, Object, Scene, robot_model
from sim.tasks.panda_lift import TASK as LIFT

needs_genesis = pytest.mark.skipif(not find_spec("genesis"), reason="Genesis, whose import takes long, is not there")
pytestmark = [pytest.mark.timeout(600), needs_genesis]

N, G, DT = 6, 9.81, 0.005
SCENE = Scene((Object("cube", size=0.02, mass=0.1),), (Camera("front", (1.15, 0.0, 0.55), (0.45, 0.0, 0.1)),))
PANDA = robots.get("panda")
HOME = torch.tensor(PANDA.home)
NOMINAL = {
    "robot.action_delay": DT,
    "robot.stiffness_scale": 1.0,
    "robot.damping_scale": 1.0,
    "robot.strength_scale": 1.0,
    "robot.joint_friction": 0.0,
    "robot.armature_scale": 1.0,
    "cube.mass": 0.1,
    "cube.friction": 1.0,
}
PLAIN = {"without": ["cube.size"], "engine": "genesis", "device": "cpu"}


@pytest.fixture(scope="module")
def built() -> Iterator[GenesisEngine]:
    one = GenesisEngine(PANDA, SCENE, N, device="cpu")
    yield one
    one.close()


@pytest.fixture
def engine(built: GenesisEngine) -> GenesisEngine:
    """Nominal robots at home, cubes to their left."""
    for name, value in NOMINAL.items():
        built.parameters[name](np.arange(N), np.full(N, value))
    built.solver.set_gravity((0.0, 0.0, -G))
    place(built)
    return built


def place(engine: Any, cube: tuple[float, ...] = (0.5, 0.15, 0.02)) -> None:
    pose = np.tile([*cube, 1.0, 0, 0, 0], (N, 1))
    engine.reset(np.arange(N), np.tile(PANDA.home, (N, 1)), {"cube": pose})


def hold(engine: Any, ticks: int, offset: Any = 0.0, width: float = 0.08) -> None:
    target = (HOME + torch.as_tensor(offset)).expand(engine.num_envs, ticks, 7)
    engine.step(target, torch.full((engine.num_envs, ticks, 1), width))


def set_each(engine: Any, name: str, values: list[float]) -> None:
    """In force from the next reset on."""
    engine.parameters[name](np.arange(len(values)), np.array(values))


def way(seconds: float = 1.0) -> Tensor:
    """Smooth targets (T, 7), as the shield admits them, and gentle enough for the torque limits of all servos."""
    time = DT * torch.arange(1, round(seconds / DT) + 1)[:, None]
    size = torch.tensor([0.3, -0.2, 0.3, 0.2, -0.3, 0.3, 0.2])
    rate = torch.tensor([0.5, 0.7, 0.6, 0.9, 1.0, 1.1, 1.2])
    return HOME + size * (1 - torch.cos(2 * torch.pi * rate * time)) / 2


# ---- against MuJoCo ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("robot.action_delay", [0.0, DT, 0.012, 0.02, 0.0333, MAX_ACTION_DELAY]),
        ("robot.stiffness_scale", [0.5, 0.75, 0.9, 1.0, 1.3, 2.0]),
        ("robot.damping_scale", [0.5, 0.75, 0.9, 1.0, 1.3, 2.0]),
        ("robot.strength_scale", [0.8, 0.9, 1.0, 1.1, 1.2, 1.3]),
        ("robot.joint_friction", [0.0, 0.1, 0.3, 0.5, 1.0, 1.5]),
        ("robot.armature_scale", [0.5, 0.75, 1.0, 1.5, 2.0, 3.0]),
    ],
)
def test_joints_move_as_in_mujoco(engine: GenesisEngine, name: str, values: list[float]) -> None:
    """One second in free space, same targets, every environment another value of a parameter."""
    other = MujocoEngine(PANDA, SCENE, N, threads=1)
    paths = []
    for one in (engine, other):
        set_each(one, name, values)
        place(one)
        rows = []
        for target in way().split(5):
            one.step(target.expand(N, -1, -1), torch.full((N, len(target), 1), 0.08))
            rows.append(one.joint_state()[0])
        paths.append(torch.stack(rows))
    ours, theirs = paths
    rmse = (ours - theirs).square().mean((0, 2)).sqrt()
    effect = (theirs[:, -1] - theirs[:, 0]).square().mean().sqrt()
    assert rmse.max() < 1e-5, rmse  # rad; the project's threshold is 1e-3
    assert effect > 20 * rmse.max(), "the parameter moves the joints by far more than the engines differ"


def test_an_episode_begins_as_in_mujoco() -> None:
    """Same spaces, same dtypes, and episode k of a task is the same episode."""
    ours, theirs = (TaskEnv("panda-lift", N, **options) for options in (PLAIN, PLAIN | {"engine": "mujoco"}))
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    assert ours.simulation == {"engine": "genesis", "device": "cpu", "without": ["cube.size"]}
    for (a, _), (b, _) in ((ours.reset(seed=3), theirs.reset(seed=3)), (ours.reset(), theirs.reset())):
        for key in ours.single_observation_space:
            assert a[key].dtype == b[key].dtype == torch.float32
            assert torch.allclose(a[key], b[key], atol=1e-5), key
    actions = torch.zeros(N, 4)
    actions[:, 0] = 0.5
    for _ in range(10):
        a, b = ours.step(actions), theirs.step(actions)
    assert torch.allclose(a[0]["observation.state"], b[0]["observation.state"], atol=2e-3)
    assert [type(x) for x in a] == [type(x) for x in b] and [x.dtype for x in a[1:4]] == [x.dtype for x in b[1:4]]
    ours.close()


def test_the_scripted_expert_lifts_the_cube() -> None:
    env = TaskEnv("panda-lift", 16, **PLAIN)
    expert = make_expert(env, "STEADY", 0)
    observation, _ = env.reset(seed=0)
    running, lifted = torch.ones(16, dtype=torch.bool), torch.zeros(16, dtype=torch.bool)
    while running.any():
        observation, _, terminated, truncated, _ = env.step(expert.act(observation))
        done = terminated | truncated
        lifted |= terminated & running
        running &= ~done
        expert.reset(done.nonzero().squeeze(-1))
    assert lifted.sum() >= 14 and env.divergences == 0
    env.close()


# ---- motion and resets -------------------------------------------------------------------------------------------
def test_a_reset_robot_stands_still_also_with_a_long_delay(engine: GenesisEngine) -> None:
    set_each(engine, "robot.action_delay", [MAX_ACTION_DELAY] * N)
    place(engine)
    hold(engine, 30, 0.2)
    place(engine)
    for _ in range(6):
        hold(engine, 5)
        position, velocity = engine.joint_state()
        assert torch.allclose(position, HOME.expand(N, 7), atol=1e-4) and velocity.abs().max() < 1e-2
        assert engine.gripper_width().numpy() == pytest.approx(0.08, abs=1e-4)


def test_a_partial_reset_leaves_the_others(engine: GenesisEngine) -> None:
    hold(engine, 10, 0.1)
    state = engine.state_dict()
    hold(engine, 10, 0.1)
    wanted = engine.qpos
    engine.load_state_dict(state)
    engine.reset(
        np.array([4, 1]),
        np.tile(PANDA.home, (2, 1)),
        {"cube": np.array([[0.4, 0, y, 1, 0, 0, 0] for y in (0.05, 0.07)])},
    )
    assert engine.object_pose("cube")[[1, 4], 2].tolist() == pytest.approx([0.07, 0.05]), "in the order of the ids"
    assert engine.joint_state()[0][1].tolist() == pytest.approx(PANDA.home)
    hold(engine, 10, 0.1)
    rest = [0, 2, 3, 5]
    assert np.array_equal(engine.qpos[rest], wanted[rest])
    assert not np.array_equal(engine.qpos[[1, 4]], wanted[[1, 4]])


def test_an_episode_forgets_the_one_before(engine: GenesisEngine) -> None:
    """Contacts, warm starts and accelerations of the last episode leave no trace in the next."""
    ends = []
    for wild in (0.0, 0.3):
        hold(engine, 40, wild, width=0.0)
        set_each(engine, "cube.mass", [0.3] * N)
        place(engine)
        set_each(engine, "cube.mass", [0.1] * N)
        place(engine, (0.5, 0.15, 0.04))
        hold(engine, 60, 0.1)
        ends.append(engine.qpos)
    assert np.array_equal(*ends)


@pytest.mark.parametrize("width", [0.0, 0.03, 0.08])
def test_fingers_go_to_the_width_asked_for(engine: GenesisEngine, width: float) -> None:
    hold(engine, 200, width=width)
    assert engine.gripper_width().numpy() == pytest.approx(width, abs=2e-3)


def test_fingers_press_with_the_force_of_the_spec(engine: GenesisEngine) -> None:
    """40 N of the servo are 20 N on each finger, as MuJoCo's tendon hands them out."""
    assert PANDA.gripper.force == 40
    low, high = engine.solver.get_dofs_force_range(engine.world.fingers)
    assert torch.allclose(high, torch.tensor(20.0)) and torch.allclose(low, torch.tensor(-20.0))


def test_an_object_is_placed_while_the_robots_go_on(engine: GenesisEngine) -> None:
    hold(engine, 10, 0.1)
    before = engine.joint_state()
    poses = np.array([[0.4, 0.05 * i, 0.02, 1, 0, 0, 0] for i in range(N)])
    engine.place("cube", poses)
    assert engine.object_pose("cube").numpy() == pytest.approx(poses, abs=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(before, engine.joint_state(), strict=True))


def test_state_views_are_copies(engine: GenesisEngine) -> None:
    views = *engine.joint_state(), engine.gripper_width(), engine.object_pose("cube")
    before = [v.clone() for v in views]
    hold(engine, 20, 0.2, width=0.0)
    assert all(torch.equal(a, b) for a, b in zip(views, before, strict=True))


def test_one_environment_that_blows_up_stops_no_other(engine: GenesisEngine) -> None:
    hold(engine, 30, 0.1)
    wanted = engine.qpos
    place(engine)
    broken = engine.solver.get_qpos()[2:3].clone()
    broken[0, 3] = torch.nan
    engine.solver.set_qpos(broken, envs_idx=[2])
    hold(engine, 30, 0.1)  # beyond the tenth step, at which Genesis looks for errors
    assert engine.diverged().tolist() == [i == 2 for i in range(N)]
    rest = [0, 1, 3, 4, 5]
    assert np.array_equal(engine.qpos[rest], wanted[rest])
    place(engine)
    assert not engine.diverged().any()
    hold(engine, 30, 0.1)
    assert np.array_equal(engine.qpos, wanted), "and the reset one is as good as new"


def test_pictures_are_of_this_environment(engine: GenesisEngine) -> None:
    engine.place("cube", np.array([[0.5, 0.1 * i - 0.2, 0.02, 1, 0, 0, 0] for i in range(N)]))
    one, other = (engine.render(i, "front", 48, 64) for i in (0, 3))
    assert one.shape == (48, 64, 3) and one.dtype == np.uint8 and one.std() > 5
    assert np.abs(one.astype(int) - other.astype(int)).max() > 40


# ---- parameters --------------------------------------------------------------------------------------------------
def test_every_parameter_is_declared_and_has_a_nominal_value(engine: GenesisEngine) -> None:
    assert set(engine.parameters) == GenesisEngine.can_randomize(PANDA, SCENE) == set(NOMINAL)


def test_stiffness_damping_and_friction_are_a_servos_lag(engine: GenesisEngine) -> None:
    """At constant speed a wrist lags by (speed (kd + 1) + friction) / kp; 1 is the joint's own damping."""
    kp, kd, speed, wrist = 2000.0, 200.0, 0.6, 6
    stiffness, damping, friction = (
        [1.0, 0.5, 2.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 2.0, 1.0, 1.0],
        [0.0] * 4 + [0.5, 1.5],
    )
    set_each(engine, "robot.stiffness_scale", stiffness)
    set_each(engine, "robot.damping_scale", damping)
    set_each(engine, "robot.joint_friction", friction)
    place(engine)
    target = HOME.repeat(N, 200, 1)
    target[..., wrist] += speed * DT * torch.arange(1, 201)
    engine.step(target, torch.full((N, 200, 1), 0.08))
    late = (target[:, -1, wrist] - engine.joint_state()[0][:, wrist]).tolist()
    each = zip(stiffness, damping, friction, strict=True)
    assert late == pytest.approx([(speed * (kd * d + 1) + f) / (kp * s) for s, d, f in each], rel=0.05)
    assert late[4] - late[0] == pytest.approx(0.5 / kp, rel=0.05) and late[5] - late[0] == pytest.approx(
        1.5 / kp, rel=0.05
    )


def test_action_delay_is_the_time_to_the_first_motion(engine: GenesisEngine) -> None:
    delays = [0.0, DT, 0.012, 0.02, 0.04, MAX_ACTION_DELAY]
    set_each(engine, "robot.action_delay", delays)
    place(engine)
    when = [-1] * N
    for tick in range(1, 25):
        hold(engine, 1, torch.tensor([0, 0, 0, 0, 0, 0, 0.05]))
        for i, speed in enumerate(engine.joint_state()[1][:, 6].abs()):
            when[i] = tick if when[i] < 0 and speed > 1e-3 else when[i]
    ticks = [1, 1, 3, 4, 8, 16]  # the next whole tick, and one at least
    assert [w - when[0] for w in when] == [t - 1 for t in ticks] and when[0] <= 2


def test_mass_scales_weight_and_inertia(engine: GenesisEngine) -> None:
    masses = [0.03, 0.05, 0.1, 0.15, 0.2, 0.3]
    set_each(engine, "cube.mass", masses)
    place(engine)
    hold(engine, 200)
    cube = engine.world.objects["cube"]
    weight = cube.get_links_net_contact_force()[:, -1, 2].tolist()
    assert weight == pytest.approx([m * G for m in masses], rel=0.01)
    inertia = engine.solver.get_links_inertia([cube.links[-1].idx])[:, 0]
    assert inertia.numpy() == pytest.approx(np.array([m * 0.04**2 / 6 * np.eye(3) for m in masses]), rel=1e-5)


def test_friction_decides_whether_the_cube_slides_down_a_slope(engine: GenesisEngine) -> None:
    coefficients = [0.2, 0.4, 0.6, 0.9, 1.2, 1.4]
    set_each(engine, "cube.friction", coefficients)
    place(engine)
    slope = np.arctan(0.8)
    engine.solver.set_gravity((0.0, G * np.sin(slope), -G * np.cos(slope)))
    hold(engine, 80)
    moved, time = (engine.object_pose("cube")[:, 1] - 0.15).numpy(), 80 * DT
    expected = [0.5 * time**2 * G * (np.sin(slope) - mu * np.cos(slope)) for mu in coefficients[:3]]
    assert moved[:3] == pytest.approx(np.array(expected), rel=0.12)
    assert np.abs(moved[3:]).max() < 0.005, "0.8 is below"


def test_what_genesis_cannot_randomize_is_refused_by_name_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GenesisEngine, "__init__", lambda *a, **k: pytest.fail("was built"))
    with pytest.raises(UserError, match="'genesis' cannot randomize cube.size; it can: .*--without cube.size$"):
        TaskEnv(replace(LIFT, randomization=tuple(replace(r, optional=False) for r in LIFT.randomization)), 2,
                engine="genesis")  # fmt: skip
    with pytest.raises(UnknownName, match="'cube.sise'; did you mean cube.size"):
        TaskEnv("panda-lift", 2, engine="genesis", without=["cube.sise"])


def test_what_a_task_can_do_without_is_left_out_only_where_it_has_to_be() -> None:
    assert nominal(LIFT, "genesis") == ["cube.size"] and nominal(LIFT, "mujoco") == []
    assert [r.parameter for r in LIFT.randomization if r.optional] == ["cube.size"]


# ---- resume, files, devices --------------------------------------------------------------------------------------
def test_a_resumed_engine_goes_on_with_the_same_floats(engine: GenesisEngine, tmp_path: Path) -> None:
    """Through a file, and in another engine, with contacts, delays and parameters on their way."""
    set_each(engine, "robot.action_delay", [0.03] * N)
    set_each(engine, "cube.mass", [0.03, 0.05, 0.1, 0.15, 0.2, 0.3])
    place(engine, (0.5, 0.15, 0.021))
    hold(engine, 15, 0.1)
    save_state(engine.state_dict(), tmp_path / "state")
    hold(engine, 30, -0.1, width=0.0)
    wanted = engine.qpos, engine.qvel
    other = GenesisEngine(PANDA, SCENE, N, device="cpu")
    other.load_state_dict(load_state(tmp_path / "state"))
    hold(other, 30, -0.1, width=0.0)
    assert np.array_equal(other.qpos, wanted[0]) and np.array_equal(other.qvel, wanted[1])
    other.close()


def test_a_users_own_model_file_is_simulated(tmp_path: Path) -> None:
    source = robot_model(PANDA)
    spec = mujoco.MjSpec.from_file(str(source))
    spec.meshdir = str(source.parent / spec.meshdir)
    spec.actuator("actuator7").gainprm[0], spec.actuator("actuator7").biasprm[1] = 1000, -1000
    spec.compile()
    (tmp_path / "mine.xml").write_text(spec.to_xml())
    mine = GenesisEngine(PANDA, SCENE, N, mjcf=str(tmp_path / "mine.xml"), device="cpu")
    assert mine.solver.get_dofs_act_gain(mine.world.joints)[0].tolist() == [4500, 4500, 3500, 3500, 2000, 2000, 1000]
    mine.close()
    with pytest.raises(UserError, match="nowhere.xml: no such file"):
        GenesisEngine(PANDA, SCENE, 1, mjcf="nowhere.xml", device="cpu")


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no cuda device.*--device cpu"):
        start("cuda")
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        start("gpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES=1"):
        start("cuda:1")
    with pytest.raises(UserError, match="'mujoco' runs on the CPU, not on 'cuda'; use --engine genesis"):
        TaskEnv("panda-lift", 1, device="cuda")
