"""The Panda's spec against the model file in genesis-world."""

from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.kinematics import Kinematics
from sim.engines.mujoco import MujocoEngine
from sim.scenes import Scene, robot_model


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    from robot_rl.robots.panda import PANDA

    return mujoco.MjModel.from_xml_path(str(robot_model(PANDA)))


def test_joints_limits_and_gripper_width_equal_the_model(panda: Any, model: mujoco.MjModel) -> None:
    for joint in panda.joints:
        theirs = model.joint(joint.name)
        assert (joint.low, joint.high) == pytest.approx(tuple(theirs.range), abs=1e-9), joint.name
        assert np.allclose(theirs.axis, joint.axis), joint.name
        of_joints = model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
        (actuator,) = np.flatnonzero(of_joints & (model.actuator_trnid[:, 0] == theirs.id))
        assert model.actuator_forcerange[actuator, 1] == joint.effort, joint.name
    assert model.nq == len(panda.joints) + len(panda.gripper.joints)
    travel = [model.joint(name).range[1] for name in panda.gripper.joints]
    assert sum(travel) == pytest.approx(panda.gripper.width)


def test_kinematics_equal_mujoco(panda: Any, random_joints: Any, model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    joints = random_joints(panda, 40)
    dofs = [model.joint(n).dofadr[0] for n in panda.joint_names]
    position, rotation, jacobian = Kinematics(panda, torch.float32).jacobian(joints.float())
    hand = model.body("hand").id
    for k, q in enumerate(joints.numpy()):
        data.qpos[dofs] = q
        mujoco.mj_fwdPosition(model, data)
        frame = data.body("hand").xmat.reshape(3, 3)
        tool = data.body("hand").xpos + frame @ [0.0, 0.0, 0.1034]
        jp, jr = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, jp, jr, tool, hand)
        assert np.allclose(position[k], tool, atol=1e-5)
        assert np.allclose(rotation[k], frame, atol=1e-5)
        assert np.allclose(jacobian[k], np.vstack([jp, jr])[:, dofs], atol=1e-5)


def test_tool_is_between_the_finger_pads_and_at_home_inside_the_workspace(panda: Any, model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    data.qpos[:7] = panda.home
    mujoco.mj_kinematics(model, data)
    pads = []
    for name in ("left_finger", "right_finger"):
        body = model.body(name)
        geoms = range(body.geomadr[0], body.geomadr[0] + body.geomnum[0])
        boxes = [g for g in geoms if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_BOX]
        pads.append(data.geom_xpos[max(boxes, key=lambda g: model.geom_size[g].prod())])
    tool = Kinematics(panda).forward(torch.tensor([panda.home]))[0][0].numpy()
    assert np.allclose(tool, np.mean(pads, 0), atol=1e-3)
    home = torch.tensor(panda.home)
    assert (home > panda.limit("low") + 0.1).all() and (home < panda.limit("high") - 0.1).all()
    position, rotation = Kinematics(panda).forward(home[None])
    low, high = torch.tensor(panda.tool.workspace)
    assert ((position > low) & (position < high)).all()
    assert torch.allclose(position[0], torch.tensor([0.45, 0.0, 0.25]), atol=0.01)
    assert torch.allclose(rotation[0, :, 2], torch.tensor([0.0, 0.0, -1.0]), atol=1e-3)  # pointing down


def test_fingerprint_ignores_topics_frames_and_driver_names(panda: Any) -> None:
    """One bundle runs on robots of one type with different drivers."""
    from dataclasses import fields, replace

    from robot_rl.interface.driver import SafetyConfig

    texts = {f.name: f"x/{getattr(panda.driver, f.name)}" for f in fields(panda.driver) if f.type == "str"}
    names = {"joint_names": (("joint1", "a1"),), "base_frames": ("world",)}
    names |= {"safety": SafetyConfig(tilt=30.0), "follow": "direct", "stop": "robot_holds"}
    names |= {"gripper_unit": "finger", "state_rate": 500.0, "controllers": ("one", "other")}
    names |= {"force_limit": 20.0, "torque_limit": 5.0}
    assert {*texts, *names} == {f.name for f in fields(panda.driver)}
    for change in (*({name: text} for name, text in texts.items()), *({n: v} for n, v in names.items())):
        assert replace(panda, driver=replace(panda.driver, **change)).fingerprint() == panda.fingerprint(), change


def test_simulated_gripper_has_the_specs_gains_and_the_recorded_motion(panda: Any, model: mujoco.MjModel) -> None:
    """Recorded when engines still hard-coded the gains and finger inertia that are now in the spec."""
    engine = MujocoEngine(panda, Scene(), 1, threads=1)
    ours, theirs = engine.model.actuator("actuator8"), model.actuator("actuator8")
    assert np.array_equal(ours.gainprm, 10 * theirs.gainprm) and np.array_equal(ours.biasprm, 10 * theirs.biasprm)
    assert ours.forcerange.tolist() == [-40, 40]
    assert [engine.model.joint(name).armature[0] for name in panda.gripper.joints] == [0.3, 0.3]
    engine.reset(np.array([0]), np.array([panda.home]), {})
    time = torch.arange(1, 201)[:, None] / 200
    path = torch.tensor([panda.home]) + 0.2 * torch.sin(3 * time * torch.arange(1, 8))
    engine.step(path[None], torch.where(time < 0.5, 0.08, 0.01)[None])
    before = [
        0.08248732187494627, -0.31252411595713775, 0.14100371585498894, -2.6273301948510146, 0.10809282582939321,
        2.2198959302923016, 0.857093432868239, 0.0051965228032797035, 0.005193205151333606,
    ]  # fmt: skip
    assert np.abs(engine.qpos[0] - before).max() < 1e-12
    engine.close()
