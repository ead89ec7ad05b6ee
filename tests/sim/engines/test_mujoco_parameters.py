"""Each randomized parameter has its physical effect, of the right sign and size, in the right environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from sim.engines.model import MAX_ACTION_DELAY
from sim.rendering.looks import can_randomize as looks_of
from sim.tasks import tasks
from sim.tasks.base import PLACE

Build = Callable[..., Any]
G, DT = 9.81, 0.005
VALUES = {
    "robot.action_delay": 0.03,
    "robot.stiffness_scale": 0.5,
    "robot.damping_scale": 2.0,
    "robot.strength_scale": 0.8,
    "robot.joint_friction": 1.5,
    "robot.armature_scale": 3.0,
    "cube.mass": 0.3,
    "cube.size": 0.03,
    "cube.friction": 0.4,
}


def test_every_parameter_of_the_engine_and_of_the_tasks_is_tested_here(engine: Build, panda: Any) -> None:
    one = engine()
    assert set(one.parameters) == one.can_randomize(panda, one.scene) == set(VALUES)
    for name in [name for name in tasks if tasks.get(name).interface.robot == "panda"]:
        drawn = {r.parameter for r in tasks.get(name).randomization}
        scene = tasks.get(name).scene
        places = {f"{o.name}.{way}" for o in scene.objects for way in PLACE} | {"robot.home_offset"}
        looks = looks_of(scene)  # tested where they are drawn
        assert {d for d in drawn if not d.startswith("sensor.")} - places - looks <= set(VALUES)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_changes_its_own_environment_only(engine: Build, name: str) -> None:
    one, plain = engine(3, **{name.replace(".", "__"): [None, VALUES[name], None]}), engine(3)
    changed = False
    for key, values in one.state_dict().items():
        if key.startswith("model."):
            nominal = plain.batch.expand(key.removeprefix("model."))
            # What was not asked for stays as it was compiled; set_const may round the fields that it derives.
            assert np.allclose(values[[0, 2]], nominal[[0, 2]], rtol=1e-9, atol=1e-12), key
            changed |= not np.allclose(values[1], nominal[1], rtol=1e-6)
    assert changed


def contact_force(one: Any, index: int) -> float:
    """Sum of the normal forces on the cube, N."""
    model, data = one.batch.get_model(index), one.batch.get_data(index)
    mujoco.mj_forward(model, data)
    total, force = 0.0, np.zeros(6)
    for k in range(data.ncon):
        mujoco.mj_contactForce(model, data, k, force)
        total += force[0]
    return total


def test_mass_scales_weight_and_inertia(engine: Build, hold: Build) -> None:
    masses = [0.05, 0.1, 0.3]
    one = engine(3, cube__mass=masses)
    body = one.model.body("scene/cube").id
    assert one.batch.expanded("body_mass")[:, body].tolist() == pytest.approx(masses)
    hold(one, 200)
    assert [contact_force(one, i) for i in range(3)] == pytest.approx([m * G for m in masses], rel=0.01)
    inertia = one.batch.expanded("body_inertia")[:, body]
    assert inertia == pytest.approx(np.array([[m * 0.04**2 / 6] * 3 for m in masses]), rel=1e-6)

    flying = engine(3, cube=(0.5, 0.4, 1.0), cube__mass=masses)
    flying.batch.bind("xfrc_applied")[:, body, 1] = 0.6
    hold(flying, 20)
    speed = flying.qvel[:, flying.model.joint("scene/cube").dofadr[0] + 1]
    assert speed.tolist() == pytest.approx([0.6 / m * 20 * DT for m in masses], rel=0.02)


def test_size_is_the_resting_height(engine: Build, hold: Build) -> None:
    sizes = [0.012, 0.02, 0.03]
    one = engine(3, cube=(0.5, 0.15, 0.06), cube__size=sizes)
    hold(one, 300)
    assert one.object_pose("cube")[:, 2].tolist() == pytest.approx(sizes, abs=3e-4)
    body = one.model.body("scene/cube").id
    inertia = one.batch.expanded("body_inertia")[:, body, 0]
    assert inertia.tolist() == pytest.approx([0.1 * (2 * s) ** 2 / 6 for s in sizes], rel=1e-6)
    assert one.batch.expanded("body_mass") is None or np.allclose(one.batch.expanded("body_mass")[:, body], 0.1)


def test_friction_decides_whether_the_cube_slides_down_a_slope(engine: Build, hold: Build) -> None:
    one = engine(3, cube=(0.5, 0.15, 0.02), cube__friction=[0.4, 0.6, 1.2])
    slope = np.arctan(0.8)
    one.batch.expand("opt.gravity")[:] = [0, G * np.sin(slope), -G * np.cos(slope)]
    hold(one, 80)
    moved = (one.object_pose("cube")[:, 1] - 0.15).numpy()
    time = 80 * DT
    expected = [0.5 * time**2 * G * (np.sin(slope) - mu * np.cos(slope)) for mu in (0.4, 0.6)]
    assert moved[:2].tolist() == pytest.approx(expected, rel=0.12)
    assert abs(moved[2]) < 0.005, "0.8 is below a friction of 1.2"


def first_motion(one: Any, hold: Build) -> list[int]:
    """Ticks until joint 7 starts to move after a new command."""
    when = [-1] * one.num_envs
    for tick in range(1, 25):
        hold(one, 1, torch.tensor([0, 0, 0, 0, 0, 0, 0.05]))
        for i, speed in enumerate(one.joint_state()[1][:, 6].abs()):
            if when[i] < 0 and speed > 1e-3:
                when[i] = tick
    return when


def test_action_delay_is_the_time_to_the_first_motion(engine: Build, hold: Build) -> None:
    delays = [0.005, 0.02, 0.04, MAX_ACTION_DELAY]
    one = engine(4, robot__action_delay=delays)
    when = np.array(first_motion(one, hold)) * DT
    assert (when - when[0]).tolist() == pytest.approx([d - delays[0] for d in delays])
    assert when[0] <= delays[0] + DT + 1e-9, "nothing else delays the first motion"


WRIST, KP, KD = 6, 2000.0, 200.0
"""The last joint carries next to no inertia, so a servo's textbook formulas hold."""


def deflection(one: Any, hold: Build, panda: Any, torque: float) -> list[float]:
    """How far the wrist gives way to a constant torque, rad."""
    one.batch.bind("qfrc_applied")[:, WRIST] = torque
    hold(one, 400)
    return (one.joint_state()[0][:, WRIST] - panda.home[WRIST]).tolist()


def test_stiffness_is_torque_per_deflection(engine: Build, hold: Build, panda: Any) -> None:
    scales = [0.8, 1.0, 1.25]
    given = deflection(engine(3, robot__stiffness_scale=scales), hold, panda, 6.0)
    assert given == pytest.approx([6 / (KP * s) for s in scales], rel=0.01)


def test_strength_scales_the_torque_and_its_limit(engine: Build, hold: Build, panda: Any) -> None:
    scales = [0.8, 1.0, 1.25]
    given = deflection(engine(3, robot__strength_scale=scales), hold, panda, 6.0)
    assert given == pytest.approx([6 / (KP * s) for s in scales], rel=0.01)
    pulling = engine(3, robot__strength_scale=scales)
    hold(pulling, 3, torch.tensor([0, 0, 0, 0, 0, 0, 0.5]))
    assert pulling.joint_torque()[:, WRIST].tolist() == pytest.approx([12 * s for s in scales], rel=1e-5)


def test_damping_is_the_time_constant(engine: Build, hold: Build, panda: Any) -> None:
    """Released, the wrist comes back like exp(-t kp / kd); 1 N m s/rad is the joint's own."""
    scales = [0.8, 1.0, 2.0]
    one = engine(3, robot__damping_scale=scales)
    start = deflection(one, hold, panda, 6.0)
    assert start == pytest.approx([6 / KP] * 3, rel=0.01), "damping does not hold against a constant torque"
    one.batch.bind("qfrc_applied")[:, WRIST] = 0
    hold(one, 20)
    left = (one.joint_state()[0][:, WRIST] - panda.home[WRIST]).tolist()
    ratio = [b / a for a, b in zip(start, left, strict=True)]
    assert ratio == pytest.approx([np.exp(-0.1 * KP / (KD * s + 1)) for s in scales], rel=0.1)


def test_joint_friction_is_a_torque_against_the_motion(engine: Build, panda: Any) -> None:
    """At constant speed it lengthens the servo's lag by friction / kp, whatever speed and direction."""
    friction = np.array([0.0, 0.5, 1.5])
    for speed in (0.6, -0.3):
        one = engine(3, robot__joint_friction=friction)
        way = torch.tensor(panda.home).repeat(3, 200, 1)
        way[..., WRIST] += speed * DT * torch.arange(1, 201)
        one.step(way, torch.full((3, 200, 1), 0.08))
        lag = (way[:, -1, WRIST] - one.joint_state()[0][:, WRIST]).numpy()
        assert lag[0] == pytest.approx(speed * (KD + 1) / KP, rel=0.1)
        assert lag - lag[0] == pytest.approx(np.sign(speed) * friction / KP, rel=0.05, abs=2e-6)


def test_armature_adds_to_the_inertia(engine: Build, panda: Any) -> None:
    scales = [1.0, 2.0, 5.0]
    one = engine(3, robot__armature_scale=scales)
    torque = 1.0
    for i, scale in enumerate(scales):
        model, data = one.batch.get_model(i), one.batch.get_data(i)
        data.qfrc_applied[6] = torque
        mujoco.mj_forward(model, data)
        full = np.zeros((model.nv, model.nv))
        mujoco.mj_forward(one.model, reference := one.batch.get_data(i))
        mujoco.mj_fullM(one.model, reference, full)
        arm = full[:7, :7] + 0.1 * (scale - 1) * np.eye(7)
        wanted = np.linalg.solve(arm, np.eye(7)[6] * torque)[6]
        assert data.qacc[6] == pytest.approx(wanted, rel=0.05), scale
