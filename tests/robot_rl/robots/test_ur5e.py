"""The UR5e's spec against the model file in genesis-world and the manufacturer's parameters."""

import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.kinematics import Kinematics
from sim.engines.model import compile_model
from sim.scenes import Scene

DH_PARAMETERS = (
    (0.1625, 0.0, 90.0), (0.0, -0.425, 0.0), (0.0, -0.3922, 0.0), (0.1333, 0.0, 90.0), (0.0997, 0.0, -90.0),
    (0.0996, 0.0, 0.0),
)  # fmt: skip
"""Denavit-Hartenberg parameters of the UR5e, d and a in m, alpha in degrees: Universal Robots, "DH Parameters for
calculations of kinematics and dynamics"."""


@pytest.fixture
def ur5e() -> Any:
    from robot_rl.robots import robots

    return robots.get("ur5e")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    """Return the model as compiled by engines: driver's joint names, manufacturer's base frame."""
    from robot_rl.robots.ur5e import UR5E

    return compile_model(UR5E, Scene())


def test_joints_and_limits_equal_the_models_and_the_manufacturers(ur5e: Any, model: mujoco.MjModel) -> None:
    assert model.nq == 6 and [model.joint(k).name for k in range(6)] == list(ur5e.joint_names)
    for joint in ur5e.joints:
        reference = model.joint(joint.name)
        assert (joint.low, joint.high) == pytest.approx(tuple(reference.range), abs=1e-4), joint.name
        assert np.allclose(reference.axis, joint.axis), joint.name
        (actuator,) = np.flatnonzero(model.actuator_trnid[:, 0] == reference.id)
        assert model.actuator_forcerange[actuator, 1] == joint.effort, joint.name
    degrees = torch.rad2deg(ur5e.limit("high"))
    assert torch.allclose(degrees, torch.tensor([360.0, 360, 180, 360, 360, 360])) and (ur5e.limit("low") < 0).all()
    assert torch.allclose(torch.rad2deg(ur5e.limit("velocity")), torch.full((6,), 180.0))
    assert ur5e.limit("effort").tolist() == [150, 150, 150, 28, 28, 28]
    assert ur5e.joint_names[0] == "shoulder_pan_joint" and ur5e.driver.command == "forward_position_controller/commands"


def test_kinematics_equal_mujoco(ur5e: Any, random_joints: Any, model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    joints = random_joints(ur5e, 40)
    position, rotation, jacobian = Kinematics(ur5e).jacobian(joints.float())
    flange = model.site("attachment_site").id
    for k, q in enumerate(joints.numpy()):
        data.qpos[:] = q
        mujoco.mj_fwdPosition(model, data)
        jp, jr = np.zeros((3, 6)), np.zeros((3, 6))
        mujoco.mj_jacSite(model, data, jp, jr, flange)
        assert np.allclose(position[k], data.site_xpos[flange], atol=1e-5)
        quarter = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]  # about z, from the model's flange frame to the manufacturer's
        assert np.allclose(rotation[k], data.site_xmat[flange].reshape(3, 3) @ quarter, atol=1e-5)
        assert np.allclose(jacobian[k], np.vstack([jp, jr]), atol=1e-5)


def test_geometry_equals_the_manufacturers_within_two_millimetres(ur5e: Any, random_joints: Any) -> None:
    """base_link is the base frame of the parameters, rotated by 180 degrees about z."""
    joints = random_joints(ur5e, 40)
    position, rotation = Kinematics(ur5e, torch.float64).forward(joints)
    for k, q in enumerate(joints.numpy()):
        frame = np.diag([-1.0, -1, 1, 1])
        for angle, (d, a, twist) in zip(q, DH_PARAMETERS, strict=True):
            c, s, alpha = math.cos(angle), math.sin(angle), math.radians(twist)
            ca, sa = math.cos(alpha), math.sin(alpha)
            frame = frame @ [[c, -s * ca, s * sa, a * c], [s, c * ca, -c * sa, a * s], [0, sa, ca, d], [0, 0, 0, 1]]
        assert np.linalg.norm(position[k].numpy() - frame[:3, 3]) < 2e-3
        assert np.allclose(rotation[k], frame[:3, :3], atol=1e-5)


def test_home_is_inside_limits_without_contacts(ur5e: Any, model: mujoco.MjModel) -> None:
    home = torch.tensor(ur5e.home)
    assert (home > ur5e.limit("low") + 0.1).all() and (home < ur5e.limit("high") - 0.1).all()
    position, rotation = Kinematics(ur5e).forward(home[None])
    assert torch.allclose(position[0], torch.tensor([0.48, 0.0, 0.30]), atol=0.001)
    assert torch.allclose(rotation[0, :, 2], torch.tensor([0.0, 0.0, -1.0]), atol=1e-3)  # pointing down
    data = mujoco.MjData(model)
    data.qpos[:] = ur5e.home
    mujoco.mj_forward(model, data)
    assert data.ncon == 0


def test_workspace_is_reachable_without_singularities(ur5e: Any) -> None:
    kinematics, (low, high) = Kinematics(ur5e), torch.tensor(ur5e.tool.workspace)
    goal = torch.cartesian_prod(*torch.stack([low, (low + high) / 2, high], 1))
    q = torch.tensor(ur5e.home).repeat(len(goal), 1)
    for _ in range(200):
        position, _, jacobian = kinematics.jacobian(q)
        twist = torch.cat([goal - position, torch.zeros_like(goal)], 1)
        q = q + 0.1 * torch.linalg.solve(jacobian, twist[..., None]).squeeze(-1)
    position, rotation, jacobian = kinematics.jacobian(q)
    assert torch.allclose(position, goal, atol=1e-3) and (rotation[:, 2, 2] < -0.999).all()
    assert torch.linalg.svdvals(jacobian).min() > 0.1, "twice the damping of the controller"
    assert (q.abs() < ur5e.limit("high") - 0.2).all()
