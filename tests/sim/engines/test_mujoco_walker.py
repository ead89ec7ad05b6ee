"""A walking robot in MuJoCo: each randomized parameter has its physical effect, of the right sign and size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.rotation import quat_to_matrix
from robot_rl.robots.go2 import GO2
from robot_rl.util.errors import ConfigError
from sim.engines.model import MAX_ACTION_DELAY, foot_shapes, robot_model_spec
from sim.engines.mujoco import MujocoEngine
from sim.engines.trunk import PAYLOAD_EDGE, PAYLOAD_PLACE
from sim.scenes import Object, Scene
from sim.tasks import tasks

Build = Callable[..., MujocoEngine]
G, DT = 9.81, 0.005
HOME = torch.tensor(GO2.home)
HIP, CALF = 0, 2
KP, KD = GO2.joints[0].stiffness, GO2.joints[0].damping
VALUES = {
    "base.mass_scale": 1.3,
    "base.com_x": 0.04,
    "base.com_y": 0.03,
    "base.com_z": 0.08,
    "payload.mass": 3.0,
    "robot.link_mass_scale": 1.2,
    "ground.friction": 0.4,
    "robot.strength_scale": 0.7,
    "robot.stiffness_scale": 0.6,
    "robot.damping_scale": 1.8,
    "robot.armature_scale": 3.0,
    "robot.joint_friction": 0.4,
    "robot.action_delay": 0.03,
}


@pytest.fixture
def walker() -> Build:
    """n Go2s at home on the ground; `parameters` holds one value for each of them, None keeps the default."""

    def build(n: int = 2, timestep: float = DT, **parameters: Any) -> MujocoEngine:
        one = MujocoEngine(GO2, Scene(timestep=timestep, impratio=1.0), n, threads=1)
        for name, values in parameters.items():
            chosen = [i for i, v in enumerate(values) if v is not None]
            one.parameters[name.replace("__", ".")](np.array(chosen), np.array([values[i] for i in chosen], float))
        one.reset(np.arange(n), np.tile(GO2.home, (n, 1)), {})
        return one

    return build


@pytest.fixture
def adrift(walker: Build) -> Build:
    """The same in the air and without gravity: what a joint does there is its own doing."""

    def build(n: int = 2, **parameters: Any) -> MujocoEngine:
        one = walker(n, **parameters)
        one.batch.expand("opt.gravity")[:] = 0
        one.qpos[:, 2] = 2.0
        return one

    return build


def hold(one: MujocoEngine, ticks: int, offset: Any = 0.0) -> None:
    """Ask for a posture during a number of physics steps."""
    target = (HOME + torch.as_tensor(offset)).expand(one.num_envs, ticks, 12)
    one.step(target, torch.zeros(one.num_envs, ticks, 1))


def weight(one: MujocoEngine) -> list[float]:
    """Sum of the foot forces, as a mass, kg."""
    return (one.foot_state()["foot_force"].sum(1) / G).tolist()


def pressure(one: MujocoEngine) -> np.ndarray:
    """Centre of the foot forces (n, 2), seen from the trunk, m."""
    feet = one.foot_state()
    force, place = feet["foot_force"], feet["foot_position"].unflatten(1, (4, 3))[..., :2]
    centre = (force[..., None] * place).sum(1) / force.sum(1, keepdim=True)
    return (centre - one.base_state()["base_position"][:, :2]).numpy()


def joint(k: int, value: float) -> torch.Tensor:
    offset = torch.zeros(12)
    offset[k] = value
    return offset


def inertia(one: MujocoEngine) -> np.ndarray:
    """Inertia (n, bodies, 3, 3) of each body in its own frame."""
    moments, quat = one.batch.expand("body_inertia"), one.batch.expand("body_iquat")
    axes = quat_to_matrix(torch.from_numpy(quat.copy())).numpy()
    return axes @ (moments[..., None] * axes.swapaxes(-1, -2))


OF_PRINCIPAL_AXES = ("model.body_inertia", "model.body_iquat", "model.bvh_aabb")
"""The same inertia can be written with other axes, and so are the boxes around a body's shapes."""
STIFF: dict[str, Any] = {"robot__stiffness_scale": [8.0] * 3, "robot__damping_scale": [8.0] * 3}
"""Legs that hardly give way, so that the robot leans as a whole."""
TRUNK = GO2.base.body if GO2.base else ""


def mass_of(one: MujocoEngine, body: str = "") -> float:
    return float(one.model.body(body).mass[0] if body else one.model.body_mass.sum())


def test_every_parameter_of_the_engine_and_of_the_task_is_tested_here(walker: Build) -> None:
    one = walker(1)
    assert set(one.parameters) == one.can_randomize(GO2, one.scene) == set(VALUES)
    drawn = {r.parameter for r in tasks.get("go2-velocity").randomization}
    own = {"robot.home_offset", "push.speed", "push.interval"}
    assert {d for d in drawn if not d.startswith("sensor.")} - own <= set(VALUES)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_changes_its_own_environment_only(walker: Build, name: str) -> None:
    one, plain = walker(3, **{name.replace(".", "__"): [None, VALUES[name], None]}), walker(3)
    changed = False
    for key, values in one.state_dict().items():
        if key.startswith("model.") and key not in OF_PRINCIPAL_AXES:
            nominal = plain.batch.expand(key.removeprefix("model."))
            # What was not asked for stays as it was compiled; set_const may round the fields that it derives.
            assert np.allclose(values[[0, 2]], nominal[[0, 2]], rtol=1e-6, atol=1e-9), key
            changed |= not np.allclose(values[1], nominal[1], rtol=1e-6)
    assert changed
    assert np.allclose(inertia(one)[[0, 2]], inertia(plain)[[0, 2]], rtol=1e-6, atol=1e-9)
    hold(one, 40)
    hold(plain, 40)
    assert np.allclose(one.qpos[[0, 2]], plain.qpos[[0, 2]], atol=1e-6)


def test_masses_are_weight_on_the_feet(walker: Build) -> None:
    one = walker(
        4,
        base__mass_scale=[None, 1.2, None, None],
        payload__mass=[None, None, 2.0, None],
        robot__link_mass_scale=[None, None, None, 1.1],
    )
    hold(one, 400)
    total, trunk = mass_of(one), mass_of(one, TRUNK)
    expected = [total, total + 0.2 * trunk, total + 2.0, trunk + 1.1 * (total - trunk)]
    assert weight(one) == pytest.approx(expected, rel=0.01)
    forces = one.foot_state()["foot_force"]
    assert (forces > 0.1 * G).all(), "all four feet carry"


@pytest.mark.parametrize(("name", "axis"), [("base__com_x", 0), ("base__com_y", 1)])
def test_a_shifted_centre_shifts_the_load_on_the_feet(walker: Build, name: str, axis: int) -> None:
    shift = 0.03
    one = walker(3, **{name: [None, shift, -shift]}, **STIFF)
    hold(one, 400)
    moved = pressure(one)[1:] - pressure(one)[0]
    wanted = shift * mass_of(one, TRUNK) / mass_of(one)
    assert moved[:, axis].tolist() == pytest.approx([wanted, -wanted], rel=0.1)
    assert np.abs(moved[:, 1 - axis]).max() < 0.1 * wanted
    assert weight(one) == pytest.approx([mass_of(one)] * 3, rel=0.01)


def test_a_payload_loads_the_feet_where_it_sits(walker: Build) -> None:
    """The trunk's own centre is a little in front, the payload is on the middle: its load moves the centre back."""
    one = walker(2, payload__mass=[None, 4.0])
    hold(one, 600)
    nominal = pressure(one)[0, 0]
    wanted = (nominal * mass_of(one) + PAYLOAD_PLACE[0] * 4.0) / (mass_of(one) + 4.0)
    assert pressure(one)[1, 0] == pytest.approx(wanted, abs=0.003)


def test_a_high_centre_leans_further_down_a_slope(walker: Build) -> None:
    lift, slope = 0.08, 0.15
    one = walker(3, base__com_z=[None, lift, -lift], **STIFF)
    one.batch.expand("opt.gravity")[:] = [0, G * np.sin(slope), -G * np.cos(slope)]
    hold(one, 400)
    moved = pressure(one)[1:] - pressure(one)[0]
    wanted = np.tan(slope) * lift * mass_of(one, TRUNK) / mass_of(one)
    # The legs give way a little more below the higher centre.
    assert moved[:, 1].tolist() == pytest.approx([wanted, -wanted], rel=0.15)


def test_trunk_and_payload_move_as_a_model_that_is_compiled_with_them(walker: Build) -> None:
    """All of the mass matrix: principal axes of the engine's trunk included."""
    one = walker(1, base__com_x=[0.03], base__com_z=[-0.02], payload__mass=[3.0])
    spec = robot_model_spec(GO2, one.scene)
    trunk = spec.body(TRUNK)
    trunk.ipos = trunk.ipos + np.array([0.03, 0.0, -0.02])
    load = trunk.add_body(name="payload", pos=PAYLOAD_PLACE)
    load.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[PAYLOAD_EDGE / 2] * 3, mass=3.0, contype=0, conaffinity=0)
    matrices = []
    for model in (one.batch.get_model(0), spec.compile()):
        data, full = mujoco.MjData(model), np.zeros((model.nv, model.nv))
        data.qpos[:] = one.qpos[0]
        mujoco.mj_forward(model, data)
        mujoco.mj_fullM(model, data, full)
        matrices.append(full)
    assert np.allclose(*matrices, rtol=1e-6, atol=1e-7)
    assert matrices[0][0, 0] == pytest.approx(mass_of(one) + 3.0)


def test_friction_decides_whether_the_robot_slides_down_a_slope(walker: Build) -> None:
    frictions = [0.15, 0.25, 0.6]
    one = walker(3, ground__friction=frictions, **STIFF)
    hold(one, 100)
    slope = np.arctan(0.35)
    one.batch.expand("opt.gravity")[:] = [G * np.sin(slope), 0, -G * np.cos(slope)]
    hold(one, 60)
    early = one.foot_state()["foot_velocity"].unflatten(1, (4, 3))[..., 0].mean(1).numpy()
    hold(one, 60)
    late = one.foot_state()["foot_velocity"].unflatten(1, (4, 3))[..., 0].mean(1).numpy()
    gained = (late - early) / (60 * DT)
    expected = [G * (np.sin(slope) - mu * np.cos(slope)) for mu in frictions[:2]]
    assert gained[:2].tolist() == pytest.approx(expected, rel=0.12)
    assert abs(gained[2]) < 0.15 and abs(late[2]) < 0.05, "0.35 is below a friction of 0.6"


def test_friction_is_of_all_shapes_of_a_foot_that_touch_the_ground() -> None:
    """Many files show a foot by a mesh that touches nothing, and list that first."""
    shown = '<geom size="1" contype="0" conaffinity="0"/>'
    feet = f'<body name="a">{shown}<geom size="1"/><geom size="2" conaffinity="0"/></body><body name="b">{shown}</body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{feet}</worldbody></mujoco>")
    assert foot_shapes(model, "a") == [1, 2]
    with pytest.raises(
        ConfigError, match="the foot 'b' has no shape that collides in the robot's model file; give it one"
    ):
        foot_shapes(model, "b")


def test_the_density_of_links_is_not_that_of_a_box_in_the_scene() -> None:
    crate = Object("crate", size=0.1, mass=2.0)
    one = MujocoEngine(GO2, Scene(timestep=DT, objects=(crate,)), 1, threads=1)
    one.parameters["robot.link_mass_scale"](np.array([0]), np.array([1.2]))
    mass = one.batch.expand("body_mass")[0]
    assert mass[one.model.body("scene/crate").id] == 2.0
    assert mass[one.model.body("FL_calf").id] == pytest.approx(1.2 * mass_of(one, "FL_calf"))


def test_strength_scales_torque_and_its_limit(adrift: Build) -> None:
    scales = [0.7, 1.0, 1.2]
    one = adrift(3, robot__strength_scale=scales)
    hold(one, 2, joint(HIP, 3.0) + joint(CALF, -5.0))
    torque = one.joint_torque()
    assert torque[:, HIP].tolist() == pytest.approx([23.7 * s for s in scales], rel=1e-5)
    assert torque[:, CALF].tolist() == pytest.approx([-35.55 * s for s in scales], rel=1e-5)
    weak = adrift(3, robot__strength_scale=scales)
    hold(weak, 2, joint(HIP, 0.1))
    assert weak.joint_torque()[:, HIP].tolist() == pytest.approx([0.1 * KP * s for s in scales], rel=1e-3)


def test_strength_and_stiffness_multiply(adrift: Build) -> None:
    one = adrift(2, robot__strength_scale=[0.5, 1.0], robot__stiffness_scale=[0.8, 0.4])
    hold(one, 2, joint(HIP, 0.1))
    assert one.joint_torque()[:, HIP].tolist() == pytest.approx([0.1 * KP * 0.4] * 2, rel=1e-3)


def test_stiffness_is_torque_per_deflection(adrift: Build) -> None:
    """A motor pulled by 3 N m between trunk and leg: at rest its spring pulls back as hard."""
    scales = [0.8, 1.0, 1.25]
    one = adrift(3, robot__stiffness_scale=scales, robot__joint_friction=[0.0] * 3)
    one.batch.bind("qfrc_applied")[:, 6 + CALF] = 3.0
    hold(one, 600)
    deflection = one.joint_state()[0] - HOME
    assert deflection[:, CALF].tolist() == pytest.approx([3.0 / (KP * s) for s in scales], rel=0.01)
    deflection[:, CALF] = 0
    assert deflection.abs().max() < 1e-3


def test_damping_is_torque_against_speed(adrift: Build) -> None:
    scales = [0.5, 1.0, 1.8]
    for speed in (2.0, -4.0):
        one = adrift(3, robot__damping_scale=scales)
        one.qvel[:, 6 + HIP] = speed
        hold(one, 1)
        assert one.joint_torque()[:, HIP].tolist() == pytest.approx([-KD * s * speed for s in scales], rel=1e-4)


def test_joint_friction_is_a_torque_against_the_motion(adrift: Build) -> None:
    """What a motor has to give to keep a hip at constant speed."""
    friction = [0.0, 0.1, 0.3]
    for speed in (0.4, -0.4):
        one = adrift(3, robot__joint_friction=friction)
        way = HOME.repeat(3, 300, 1)
        way[..., HIP] += speed * DT * torch.arange(1, 301)
        one.step(way, torch.zeros(3, 300, 1))
        assert one.joint_state()[1][:, HIP].tolist() == pytest.approx([speed] * 3, rel=0.05)
        wanted = [np.sign(speed) * f for f in friction]
        assert one.joint_torque()[:, HIP].tolist() == pytest.approx(wanted, rel=0.05, abs=0.01)


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_armature_sets_the_frequency_at_which_a_leg_rings(adrift: Build, scale: float) -> None:
    """Let go in the shape of its slowest mode, the drifting robot swings back as inertia and springs say."""
    one = adrift(
        1, timestep=0.001, robot__armature_scale=[scale], robot__damping_scale=[0.0], robot__joint_friction=[0.0]
    )
    data, matrix = mujoco.MjData(one.model), np.zeros((18, 18))
    data.qpos[:] = one.qpos[0]
    mujoco.mj_forward(one.model, data)
    mujoco.mj_fullM(one.model, data, matrix)
    assert GO2.armature is not None
    matrix[6:, 6:] += (scale - 1) * GO2.armature * np.eye(12)
    springs = np.diag([0.0] * 6 + [KP] * 12)
    root = np.linalg.inv(np.linalg.cholesky(matrix))
    square, shapes = np.linalg.eigh(root @ springs @ root.T)
    mode = int(np.flatnonzero(square > 1.0)[0])
    shape = root.T @ shapes[:, mode]
    shape *= 0.02 / np.abs(shape[6:]).max()
    pose = one.qpos[0].copy()
    mujoco.mj_integratePos(one.model, pose, shape, 1.0)
    one.qpos[0] = pose
    half = np.pi / np.sqrt(square[mode])
    tick = 1 / GO2.command_rate
    path = []
    for _ in range(round(1.3 * half / tick)):
        hold(one, 1)
        path.append(float((one.joint_state()[0][0] - HOME) @ torch.from_numpy(shape[6:]).float()))
    turned = np.argmin(path)
    assert (turned + 1) * tick == pytest.approx(half, abs=tick), "half a period"
    assert path[turned] == pytest.approx(-float(shape[6:] @ shape[6:]), rel=0.05)


def test_action_delay_is_the_time_to_the_first_motion(adrift: Build) -> None:
    delays = [DT, 0.02, 0.04, MAX_ACTION_DELAY]
    one = adrift(4, robot__action_delay=delays)
    when = [0.0] * 4
    for tick in range(1, 25):
        hold(one, 1, joint(HIP, 0.2))
        for i, speed in enumerate(one.joint_state()[1][:, HIP].abs().tolist()):
            if not when[i] and speed > 1e-3:
                when[i] = tick * DT
    assert (np.array(when) - when[0]).tolist() == pytest.approx([d - DT for d in delays])
    assert when[0] <= 2 * DT + 1e-9, "nothing else delays the first motion"


def test_action_delays_come_in_whole_physics_steps(adrift: Build) -> None:
    """Of 0.01 s, 0 to 0.02 s are one step or two, as docs/architecture.md says."""
    one = adrift(6, timestep=0.01, robot__action_delay=[0.0, 0.004, 0.01, 0.0101, 0.015, 0.02])
    moving = []
    for _ in range(4):
        hold(one, 1, joint(HIP, 0.2))
        moving.append((one.joint_state()[1][:, HIP].abs() > 1e-3).tolist())
    first = [[m[i] for m in moving].index(True) for i in range(6)]
    assert [k - first[0] for k in first] == [0, 0, 0, 1, 1, 1]


def test_a_push_adds_to_the_velocity_of_the_trunk(walker: Build) -> None:
    one = walker(3)
    hold(one, 20)
    half = np.sqrt(0.5)
    one.qpos[:, 3:7] = [half, 0, 0, half]  # looking to the left
    before, others = one.base_state(), one.qvel.copy()
    one.push(torch.tensor([[0.0, 0.0, 0.1], [0.0, 0.0, 0.0], [0.5, -0.2, 0.0]], dtype=torch.double))
    added = one.base_state()["base_velocity"] - before["base_velocity"]
    assert added[2].tolist() == pytest.approx([-0.2, -0.5, 0.0], abs=1e-6), "a world velocity, seen from the trunk"
    assert added[0].tolist() == pytest.approx([0.0, 0.0, 0.1], abs=1e-6) and not added[1].any()
    assert np.array_equal(one.qvel[:, 3:], others[:, 3:]), "it turns nothing"


def test_rods_are_drawn_along_the_legs_and_change_no_float_of_the_physics(monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.engines import model as module

    scene = tasks.get("go2-velocity").scene
    drawn = module.compile_model(GO2, scene)
    monkeypatch.setattr(module, "_draw_bones", lambda *_: None)
    bare = module.compile_model(GO2, scene)
    for name in ("body_mass", "body_inertia", "body_ipos", "body_iquat", "dof_invweight0", "actuator_acc0"):
        assert np.array_equal(getattr(drawn, name), getattr(bare, name)), name
    rods = [g for g in range(drawn.ngeom) if drawn.geom_group[g] == 2 and not drawn.geom_contype[g]]
    assert len(rods) == drawn.ngeom - bare.ngeom == 12 and not drawn.geom_conaffinity[rods].any()
    lengths = sorted(2 * drawn.geom_size[rods, 1])
    assert lengths[-8:] == pytest.approx([0.213] * 8, abs=1e-3), "thigh and shank, from joint to joint"
