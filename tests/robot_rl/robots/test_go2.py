"""The Go2's spec against the manufacturer's URDF in genesis-world."""

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.driver import UnitreeLowLevel
from robot_rl.robots.go2 import GO2, LEGS
from sim.engines.model import compile_model
from sim.scenes import Scene, robot_model


@pytest.fixture(scope="module")
def urdf() -> ElementTree.Element:
    return ElementTree.parse(robot_model(GO2)).getroot()


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return compile_model(GO2, Scene())


def numbers(element: ElementTree.Element | None, name: str) -> list[float]:
    assert element is not None
    return [float(x) for x in element.get(name, "0 0 0").split()]


def test_joints_limits_and_feet_equal_the_urdf(go2: Any, urdf: ElementTree.Element) -> None:
    reference = {str(j.get("name")): j for j in urdf.iter("joint") if j.get("type") == "revolute"}
    assert set(go2.joint_names) == set(reference) and len(go2.joints) == 12
    for joint in go2.joints:
        limit = reference[joint.name].find("limit")
        assert limit is not None
        facts = {"lower": joint.low, "upper": joint.high, "effort": joint.effort, "velocity": joint.velocity}
        for name, value in facts.items():
            assert value == pytest.approx(float(limit.get(name, "nan")), abs=1e-6), f"{joint.name}: {name}"
    links = {str(link.get("name")): link for link in urdf.iter("link")}
    for foot in go2.base.feet:
        sphere = links[foot].find("collision/geometry/sphere")
        assert sphere is not None and float(sphere.get("radius", "nan")) == go2.base.foot_radius
        assert np.linalg.norm(numbers(links[foot].find("collision/origin"), "xyz")) < 0.003, "at the link's origin"
    for body in (go2.base.body, *go2.collision_bodies):
        assert body in links


def test_motors_are_in_unitrees_order(go2: Any) -> None:
    """unitree_sdk2: FR_0 = 0, FR_1, FR_2, FL_0 = 3, ..., RR_0 = 6, ..., RL_0 = 9."""
    from real.drivers.lowlevel import Motors

    assert isinstance(go2.driver, UnitreeLowLevel)
    assert sorted(go2.driver.motors) == sorted(go2.joint_names)
    assert [go2.driver.motors.index(f"{leg}_hip_joint") for leg in ("FR", "FL", "RR", "RL")] == [0, 3, 6, 9]
    assert go2.driver.motors[:3] == ("FR_hip_joint", "FR_thigh_joint", "FR_calf_joint")
    legs = ("RR", "RL", "FR", "FL")
    motors = tuple(f"{leg}_{part}_joint" for leg in legs for part in ("hip", "thigh", "calf"))
    rewired = replace(go2, driver=UnitreeLowLevel(motors=motors, feet=tuple(f"{leg}_foot" for leg in legs)))
    driver = Motors(rewired)
    sent = driver.command(np.array(rewired.home))["motor_cmd"]["q"][: driver.count]
    named = dict(zip(rewired.joint_names, rewired.home, strict=True))
    assert sent == pytest.approx([named[name] for name in motors]), "the driver uses the order of messages"


def test_link_frames_and_masses_of_the_model_equal_the_urdf(urdf: ElementTree.Element, model: mujoco.MjModel) -> None:
    for joint in urdf.iter("joint"):
        child, parent = joint.find("child"), joint.find("parent")
        assert child is not None and parent is not None
        body = model.body(str(child.get("link")))
        assert model.body(body.parentid[0]).name == parent.get("link")
        assert np.allclose(body.pos, numbers(joint.find("origin"), "xyz"), atol=1e-9), body.name
        if joint.get("type") == "revolute":
            reference = model.joint(str(joint.get("name")))
            assert np.allclose(reference.axis, numbers(joint.find("axis"), "xyz")), body.name
    masses = {str(link.get("name")): link.find("inertial/mass") for link in urdf.iter("link")}
    for name, mass in masses.items():
        assert model.body(name).mass[0] == pytest.approx(float(mass.get("value", "nan")) if mass is not None else 0.0)
    assert 14 < model.body_mass.sum() < 16, "about 15 kg with battery"


def test_only_trunk_and_feet_collide_and_only_with_the_ground(go2: Any, model: mujoco.MjModel) -> None:
    ground = model.geom("scene/table").id
    for geom in range(model.ngeom):
        body = model.body(model.geom_bodyid[geom]).name
        meets = bool(model.geom_contype[geom] & model.geom_conaffinity[ground])
        if geom != ground:
            assert not meets or body in go2.collision_bodies, body
            assert model.geom_conaffinity[geom] == 0, "no self-collision"
    for body in go2.collision_bodies:
        geoms = np.flatnonzero(model.geom_bodyid == model.body(body).id)
        assert sum(model.geom_contype[geoms]) == 1, f"{body}: one colliding shape, the others are visual"


def test_actuators_have_the_specs_gains_and_limits(go2: Any, model: mujoco.MjModel) -> None:
    assert model.nu == 12 and go2.compliant
    for k, joint in enumerate(go2.joints):
        actuator, reference = model.actuator(joint.name), model.joint(joint.name)
        assert actuator.id == k and actuator.trnid[0] == reference.id
        assert actuator.gainprm[0] == joint.stiffness
        assert actuator.biasprm[:3].tolist() == [0, -joint.stiffness, -joint.damping]
        assert actuator.forcerange.tolist() == [-joint.effort, joint.effort]
        assert model.dof_armature[reference.dofadr[0]] == go2.armature
        assert model.dof_frictionloss[reference.dofadr[0]] == go2.joint_friction


def test_home_is_symmetric_with_feet_on_the_ground(go2: Any, model: mujoco.MjModel) -> None:
    home = torch.tensor(go2.home)
    assert (home > go2.limit("low") + 0.1).all() and (home < go2.limit("high") - 0.1).all()
    legs = home.view(4, 3)
    for left, right in ((0, 1), (2, 3)):
        assert torch.equal(legs[left] * torch.tensor([-1.0, 1.0, 1.0]), legs[right])
    data = mujoco.MjData(model)
    data.qpos[3:7], data.qpos[2] = [1, 0, 0, 0], go2.base.height
    for joint, angle in zip(go2.joints, go2.home, strict=True):
        data.qpos[model.joint(joint.name).qposadr[0]] = angle
    mujoco.mj_kinematics(model, data)
    soles = np.array([data.body(foot).xpos[2] - go2.base.foot_radius for foot in go2.base.feet])
    assert np.abs(soles).max() < 0.015, "feet on the ground"
    feet, hips = (np.array([data.body(f"{leg}_{part}").xpos[:2] for leg in LEGS]) for part in ("foot", "thigh"))
    assert np.abs(feet - hips).max() < 0.1, "feet under the hips"


@pytest.mark.parametrize(("field", "changes"), [
    ("velocity", {"joints": (replace(GO2.joints[0], velocity=20.0), *GO2.joints[1:])}),
    ("stiffness", {"joints": (replace(GO2.joints[0], stiffness=20.0), *GO2.joints[1:])}),
    ("joint_origin", {"joints": (replace(GO2.joints[0], position=(0.1, 0.0, 0.0)), *GO2.joints[1:])}),
    ("joint_quat", {"joints": (replace(GO2.joints[0], quat=(0.0, 1.0, 0.0, 0.0)), *GO2.joints[1:])}),
    ("base_height", {"base": replace(GO2.base, height=0.3)}),
    ("command_rate", {"command_rate": 250.0}),
    ("state_rate", {"state_rate": 250.0}),
    ("feet", {"base": replace(GO2.base, feet=GO2.base.feet[::-1])}),
    ("motors", {"driver": replace(GO2.driver, motors=GO2.joint_names)}),
    ("contacts", {"driver": replace(GO2.driver, feet=GO2.base.feet)}),
])  # fmt: skip
def test_fingerprint_changes_with_each_field(go2: Any, field: str, changes: dict[str, Any]) -> None:
    other, own = replace(go2, **changes).fingerprint(), go2.fingerprint()
    assert [name for name in own if own[name] != other[name]] == [field]


@pytest.mark.parametrize(("part", "changes", "message"), [
    ("joint", dict(damping=-1.0), "FL_hip_joint.*damping"),
    ("joint", dict(velocity=-1.0), "FL_hip_joint.*velocity"),
    ("joint", dict(high=math.inf), "FL_hip_joint.*high"),
    ("joint", dict(low=2.0), "FL_hip_joint.*low 2.0 rad is not below high"),
    ("joint", dict(axis=(0.0, 0.0, 0.0)), "FL_hip_joint.*axis"),
    ("joint", dict(quat=(math.nan, 0.0, 0.0, 0.0)), "FL_hip_joint.*quat"),
    ("joint", dict(position=(0.0, math.inf, 0.0)), "FL_hip_joint.*position"),
    ("joint", dict(position=[0.0, 0.0, 1.0]), r"position is \[.*; it must be a tuple: \(0.0, 0.0, 1.0\)"),
    ("joint", dict(velocity="3.14"), "velocity is '3.14'; it must be a number, not a text in quotes"),
    ("robot", dict(collision_bodies="base"), r"collision_bodies is 'base'; it must be a tuple: \('base',\)"),
    ("robot", dict(armature=-0.01), "robot 'go2'.*armature"),
    ("robot", dict(command_rate=0.0), "robot 'go2'.*command_rate"),
    ("robot", dict(joints=(*GO2.joints[:-1], GO2.joints[0])), "'FL_hip_joint' is named 2 times"),
    ("robot", dict(home=(0.0,) * 11), "robot 'go2'.*home has 11 numbers for 12 joints"),
    ("robot", dict(home=(2.0, *GO2.home[1:])), "FL_hip_joint: home 2.0 rad is outside -1.0472 to 1.0472 rad$"),
    ("robot", dict(home=(-14.2, *GO2.home[1:])), r"home -14.2 rad .*; degrees are written math.radians\(-14.2"),
    ("base", dict(lying=(0.0,) * 3), "lying has 3 numbers for 12 joints"),
    ("base", dict(lying=(0.0, 1.36, 0.0) * 4), "FL_calf_joint: lying 0.0 rad is outside -2.7227"),
    ("base", dict(feet=("FL_foot", "FL_foot")), "'FL_foot' is named 2 times"),
    ("driver", dict(motors=GO2.driver.motors[:-1]), "driver.motors.*RL_calf_joint is missing"),
    ("driver", dict(motors=(*GO2.driver.motors[:-1], "FR_hip_joint")), "motors.*'FR_hip_joint' is named 2 times"),
    ("driver", dict(feet=("FR_fot", *GO2.driver.feet[1:])), "driver.feet.*'FR_fot'; did you mean FR_foot"),
])  # fmt: skip
def test_invalid_specs_are_refused(part: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        if part == "robot":
            replace(GO2, **changes)
        elif part == "joint":
            replace(GO2, joints=(replace(GO2.joints[0], **changes), *GO2.joints[1:]))
        else:
            replace(GO2, **{part: replace(getattr(GO2, part), **changes)})
