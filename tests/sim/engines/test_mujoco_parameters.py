"""Effects of MuJoCo's randomized parameters: sign, size, and only in their own environment."""

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.rotation import quat_to_matrix
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from sim.engines.model import foot_shapes, robot_model_spec
from sim.engines.mujoco import MujocoEngine
from sim.engines.trunk import PAYLOAD_EDGE, PAYLOAD_PLACE
from sim.objects import Box
from sim.parameters import find
from sim.scenes import Scene
from sim.tasks import tasks

Build = Callable[..., Any]
G, DT = 9.81, 0.005
PANDA, GO2 = robots.get("panda"), robots.get("go2")
HOME, HIP, CALF = torch.tensor(GO2.home), 0, 2
KP, KD = GO2.joints[0].stiffness, GO2.joints[0].damping
SERVOS = {
    "robot.action_delay": 0.03, "robot.stiffness_scale": 0.6, "robot.damping_scale": 1.8, "robot.strength_scale": 0.7,
    "robot.joint_friction": 0.4, "robot.armature_scale": 3.0,
}  # fmt: skip
VALUES = {
    "panda": SERVOS | {"cube.mass": 0.3, "cube.size": 0.03, "cube.friction": 0.4},
    "go2": SERVOS | {
        "base.mass_scale": 1.3, "base.com_x": 0.04, "base.com_y": 0.03, "base.com_z": 0.08, "payload.mass": 3.0,
        "robot.link_mass_scale": 1.2, "ground.friction": 0.4,
    },
}  # fmt: skip
OF_PRINCIPAL_AXES = ("model.body_inertia", "model.body_iquat", "model.bvh_aabb")
"""Fields that depend on the choice of principal axes, which is not unique."""
STIFF: dict[str, Any] = {"robot__stiffness_scale": [8.0] * 3, "robot__damping_scale": [8.0] * 3}
"""Gains of legs that hardly bend, so that the robot leans as a whole."""
TRUNK = GO2.base.body


@pytest.fixture
def walker(build: Build) -> Build:
    """n Go2s at home on the ground, and physics steps of 5 ms."""
    return lambda n=2, **values: build(GO2, Scene(timestep=DT, impratio=1.0), n, **values)


@pytest.fixture
def floating(walker: Build) -> Build:
    """n Go2s in the air without gravity, so that only their own torques move the joints."""

    def make(n: int = 2, **parameters: Any) -> MujocoEngine:
        one = walker(n, **parameters)
        one.batch.expand("opt.gravity")[:] = 0
        one.qpos[:, 2] = 2.0
        return one

    return make


def joint(k: int, value: float) -> torch.Tensor:
    return value * torch.eye(12)[k]


def inertia(one: MujocoEngine) -> np.ndarray:
    """Inertia (n, bodies, 3, 3) of each body in its own frame."""
    moments, quat = one.batch.expand("body_inertia"), one.batch.expand("body_iquat")
    axes = quat_to_matrix(torch.from_numpy(quat.copy())).numpy()
    return axes @ (moments[..., None] * axes.swapaxes(-1, -2))


def mass_of(one: MujocoEngine, body: str = "") -> float:
    return float(one.model.body(body).mass[0] if body else one.model.body_mass.sum())


def contact_force(one: Any, index: int) -> float:
    """Sum of all normal forces, N."""
    model, data = one.batch.get_model(index), one.batch.get_data(index)
    mujoco.mj_forward(model, data)
    total, force = 0.0, np.zeros(6)
    for k in range(data.ncon):
        mujoco.mj_contactForce(model, data, k, force)
        total += force[0]
    return total


@pytest.mark.parametrize("name", list(tasks))
def test_all_parameters_of_the_tasks_are_tested(name: str) -> None:
    """Here, in `test_objects`, or where sensors, initial states, pushes and appearance are tested."""
    task = tasks.get(name)
    sampled = {find(r.parameter).name for r in task.randomization if find(r.parameter).owner == "engine"}
    of_joints = {"<object>.joint_friction", "<object>.joint_damping"}
    assert sampled <= {find(each).name for values in VALUES.values() for each in values} | of_joints


@pytest.mark.parametrize(("robot", "name"), [(robot, name) for robot, values in VALUES.items() for name in values])
def test_a_parameter_changes_one_environment(robot: str, name: str, engine: Build, walker: Build, hold: Build) -> None:
    make = engine if robot == "panda" else walker
    one, plain = make(3, **{name.replace(".", "__"): [None, VALUES[robot][name], None]}), make(3)
    changed = False
    for key, values in one.state_dict().items():
        if key.startswith("model.") and key not in OF_PRINCIPAL_AXES:
            nominal = plain.batch.expand(key.removeprefix("model."))
            # Fields that set_const derives may be rounded differently.
            assert np.allclose(values[[0, 2]], nominal[[0, 2]], rtol=1e-6, atol=1e-9), key
            changed |= not np.allclose(values[1], nominal[1], rtol=1e-6)
    assert changed
    assert np.allclose(inertia(one)[[0, 2]], inertia(plain)[[0, 2]], rtol=1e-6, atol=1e-9)
    for each in (one, plain):
        hold(each, 40)
    assert np.allclose(one.qpos[[0, 2]], plain.qpos[[0, 2]], atol=1e-6)


def test_object_mass_scales_weight_and_acceleration(engine: Build, hold: Build) -> None:
    masses = [0.05, 0.1, 0.3]
    one = engine(3, cube__mass=masses)
    body = one.model.body("scene/cube").id
    assert one.batch.expanded("body_mass")[:, body].tolist() == pytest.approx(masses)
    hold(one, 200)
    assert [contact_force(one, i) for i in range(3)] == pytest.approx([m * G for m in masses], rel=0.01)
    flying = engine(3, cube=(0.5, 0.4, 1.0), cube__mass=masses)
    flying.batch.bind("xfrc_applied")[:, body, 1] = 0.6
    hold(flying, 20)
    speed = flying.qvel[:, flying.model.joint("scene/cube").dofadr[0] + 1]
    assert speed.tolist() == pytest.approx([0.6 / m * 20 * DT for m in masses], rel=0.02)


def test_object_size_is_the_resting_height(engine: Build, hold: Build) -> None:
    sizes = [0.012, 0.02, 0.03]
    one = engine(3, cube=(0.5, 0.15, 0.06), cube__size=sizes)
    hold(one, 300)
    assert one.object_pose("cube")[:, 2].tolist() == pytest.approx(sizes, abs=3e-4)
    body = one.model.body("scene/cube").id
    assert one.batch.expanded("body_mass") is None or np.allclose(one.batch.expanded("body_mass")[:, body], 0.1)


def test_armature_adds_to_the_inertia(engine: Build) -> None:
    scales = [1.0, 2.0, 5.0]
    one = engine(3, robot__armature_scale=scales)
    for i, scale in enumerate(scales):
        model, data = one.batch.get_model(i), one.batch.get_data(i)
        data.qfrc_applied[6] = 1.0
        mujoco.mj_forward(model, data)
        full = np.zeros((model.nv, model.nv))
        mujoco.mj_forward(one.model, reference := one.batch.get_data(i))
        mujoco.mj_fullM(one.model, reference, full)
        arm = full[:7, :7] + 0.1 * (scale - 1) * np.eye(7)
        expected = np.linalg.solve(arm, np.eye(7)[6])[6]
        assert data.qacc[6] == pytest.approx(expected, rel=0.05), scale


def test_masses_are_weight_on_the_feet(walker: Build, hold: Build) -> None:
    values = {"base__mass_scale": [1.2, None, None], "payload__mass": [None, 2.0, None]}
    one = walker(3, **values, robot__link_mass_scale=[None, None, 1.1])
    hold(one, 400)
    total, trunk = mass_of(one), mass_of(one, TRUNK)
    expected = [total + 0.2 * trunk, total + 2.0, trunk + 1.1 * (total - trunk)]
    forces = one.foot_state()["foot_force"]
    assert (forces.sum(1) / G).tolist() == pytest.approx(expected, rel=0.01)
    assert (forces > 0.1 * G).all(), "all four feet carry"


def test_trunk_and_payload_have_the_mass_matrix_of_a_compiled_model(walker: Build) -> None:
    one = walker(1, base__com_x=[0.03], base__com_y=[0.01], base__com_z=[-0.02], payload__mass=[3.0])
    spec = robot_model_spec(GO2, one.scene)
    trunk = spec.body(TRUNK)
    trunk.ipos = trunk.ipos + np.array([0.03, 0.01, -0.02])
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


def test_a_robot_slides_down_a_slope_by_the_ground_friction(walker: Build, hold: Build) -> None:
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


def test_ground_friction_applies_to_the_colliding_geoms_of_a_foot() -> None:
    """In many files, the first geom of a foot is a visual mesh."""
    shown = '<geom size="1" contype="0" conaffinity="0"/>'
    feet = f'<body name="a">{shown}<geom size="1"/><geom size="2" conaffinity="0"/></body><body name="b">{shown}</body>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{feet}</worldbody></mujoco>")
    assert foot_shapes(model, "a") == [1, 2]
    with pytest.raises(ConfigError, match="the foot 'b' has no shape that collides .*; give it one"):
        foot_shapes(model, "b")


def test_link_mass_does_not_apply_to_objects_of_the_scene() -> None:
    crate = Box("crate", size=0.1, mass=2.0)
    one = MujocoEngine(GO2, Scene(timestep=DT, objects=(crate,)), 1, threads=1)
    one.parameters["robot.link_mass_scale"](np.array([0]), np.array([1.2]))
    mass = one.batch.expand("body_mass")[0]
    assert mass[one.model.body("scene/crate").id] == 2.0
    assert mass[one.model.body("FL_calf").id] == pytest.approx(1.2 * mass_of(one, "FL_calf"))


def test_strength_scales_torque_and_its_limit(floating: Build, hold: Build) -> None:
    scales = [0.7, 1.0, 1.2]
    one = floating(3, robot__strength_scale=scales)
    hold(one, 2, joint(HIP, 3.0) + joint(CALF, -5.0))
    torque = one.joint_torque()
    assert torque[:, HIP].tolist() == pytest.approx([23.7 * s for s in scales], rel=1e-5)
    assert torque[:, CALF].tolist() == pytest.approx([-35.55 * s for s in scales], rel=1e-5)
    weak = floating(3, robot__strength_scale=scales)
    hold(weak, 2, joint(HIP, 0.1))
    assert weak.joint_torque()[:, HIP].tolist() == pytest.approx([0.1 * KP * s for s in scales], rel=1e-3)
    both = floating(2, robot__strength_scale=[0.5, 1.0], robot__stiffness_scale=[0.8, 0.4])
    hold(both, 2, joint(HIP, 0.1))
    assert both.joint_torque()[:, HIP].tolist() == pytest.approx([0.1 * KP * 0.4] * 2, rel=1e-3), "scales multiply"


def test_stiffness_is_torque_per_deflection(floating: Build, hold: Build) -> None:
    """At rest, the spring of a motor balances 3 N m between trunk and leg."""
    scales = [0.8, 1.0, 1.25]
    one = floating(3, robot__stiffness_scale=scales, robot__joint_friction=[0.0] * 3)
    one.batch.bind("qfrc_applied")[:, 6 + CALF] = 3.0
    hold(one, 600)
    deflection = one.joint_state()[0] - HOME
    assert deflection[:, CALF].tolist() == pytest.approx([3.0 / (KP * s) for s in scales], rel=0.01)
    deflection[:, CALF] = 0
    assert deflection.abs().max() < 1e-3


def test_damping_is_torque_against_speed(floating: Build, hold: Build) -> None:
    scales = [0.5, 1.0, 1.8]
    for speed in (2.0, -4.0):
        one = floating(3, robot__damping_scale=scales)
        one.qvel[:, 6 + HIP] = speed
        hold(one, 1)
        assert one.joint_torque()[:, HIP].tolist() == pytest.approx([-KD * s * speed for s in scales], rel=1e-4)


def test_joint_friction_is_a_torque_against_the_motion(floating: Build) -> None:
    """Torque of a hip motor at constant speed."""
    friction = [0.0, 0.1, 0.3]
    for speed in (0.4, -0.4):
        one = floating(3, robot__joint_friction=friction)
        targets = HOME.repeat(3, 300, 1)
        targets[..., HIP] += speed * DT * torch.arange(1, 301)
        one.step(targets, torch.zeros(3, 300, 1))
        assert one.joint_state()[1][:, HIP].tolist() == pytest.approx([speed] * 3, rel=0.05)
        expected = [np.sign(speed) * f for f in friction]
        assert one.joint_torque()[:, HIP].tolist() == pytest.approx(expected, rel=0.05, abs=0.01)


@pytest.mark.parametrize("threads", [1, 2])
def test_foot_forces_after_a_reset_are_those_of_the_new_posture(threads: int, hold: Build) -> None:
    """With a heavier trunk and other joint positions, as in a single simulation of that posture."""
    one = MujocoEngine(GO2, Scene(timestep=DT, impratio=1.0), 3, threads=threads)
    one.reset(np.arange(3), np.tile(GO2.home, (3, 1)), {})
    hold(one, 40, 0.3)
    for name, value in (("base.mass_scale", 1.3), ("payload.mass", 2.0), ("ground.friction", 0.7)):
        one.parameters[name](np.array([2, 0]), np.array([value, 1.0]))
    joints = np.array(GO2.home) + np.array([[0.0] * 12, [0.0, -0.02, 0.04] * 4])
    before = one.foot_state()
    one.reset(np.array([2, 0]), joints, {})
    feet = one.foot_state()
    for i in (0, 2):
        model, data = one.batch.get_model(i), one.batch.get_data(i)
        mujoco.mj_forward(model, data)
        expected = [data.sensor(f"{foot}.force").data[0] for foot in GO2.base.feet]
        assert feet["foot_force"][i].tolist() == pytest.approx(expected, rel=1e-6) and sum(expected) > 10
    assert all(torch.equal(feet[name][1], before[name][1]) for name in feet)
    assert not one.joint_torque()[[0, 2]].any()
