"""The SO-101's spec against its model file, and its tool controller, which leaves the orientation free."""

from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.interface.control import ToolDeltaConfig, ToolDeltaController
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.state import RobotState
from robot_rl.robots.so101 import SO101
from robot_rl.util.errors import ConfigError
from sim.engines.model import compile_model
from sim.scenes import Scene


@pytest.fixture(scope="module")
def so101() -> Any:
    from robot_rl.robots import robots

    return robots.get("so101")


@pytest.fixture(scope="module")
def model(so101: Any) -> mujoco.MjModel:
    return compile_model(so101, Scene())


def test_kinematics_equal_mujoco(so101: Any, random_joints: Any, model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    joints = random_joints(so101, 40)
    position, rotation, jacobian = Kinematics(so101).jacobian(joints.float())
    tool = model.site("gripperframe").id
    for k, q in enumerate(joints.numpy()):
        data.qpos[:5] = q
        mujoco.mj_fwdPosition(model, data)
        jp, jr = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, jp, jr, tool)
        assert np.allclose(position[k], data.site_xpos[tool], atol=1e-5)
        assert np.allclose(rotation[k], data.site_xmat[tool].reshape(3, 3), atol=1e-5)
        assert np.allclose(jacobian[k], np.vstack([jp, jr])[:, :5], atol=1e-5)


def test_zeros_are_lerobots(so101: Any) -> None:
    """In the middle of all ranges the forearm is level, and positive angles turn right, down, down, down."""
    zero = torch.zeros(1, 5)
    position, rotation = Kinematics(so101).forward(zero)
    assert torch.allclose(position[0], torch.tensor([0.391, 0.0, 0.226]), atol=1e-3)
    assert torch.allclose(rotation[0, :, 0], torch.tensor([1.0, 0.0, 0.0]), atol=1e-3)
    moved = Kinematics(so101).forward(0.3 * torch.eye(5))[0] - position
    assert moved[0, 1] < -0.05 and (moved[1:4, 2] < -0.04).all()


def test_home_has_no_contacts_and_room(so101: Any, model: mujoco.MjModel) -> None:
    home = torch.tensor(so101.home)
    assert (home > so101.limit("low") + 0.3).all() and (home < so101.limit("high") - 0.3).all()
    data = mujoco.MjData(model)
    data.qpos[:5] = so101.home
    mujoco.mj_forward(model, data)
    assert data.ncon == 0


def test_a_free_orientation_reaches_the_whole_workspace(so101: Any) -> None:
    """The controller with the orientation kept at home stops short at the sides, where five joints cannot keep it."""
    low, high = torch.tensor(so101.tool.workspace)
    goal = torch.cartesian_prod(*torch.stack([low, (low + high) / 2, high], 1))

    def missed(config: ToolDeltaConfig) -> torch.Tensor:
        controller = ToolDeltaController(so101, config)
        q = torch.tensor(so101.home).repeat(len(goal), 1)
        for _ in range(150):
            position = controller.kinematics.forward(q)[0]
            delta = torch.cat([(goal - position).clamp(-config.step, config.step), torch.zeros(len(goal), 1)], 1)
            q = controller(RobotState(q, 0 * q, delta), delta).command.values
            assert (q >= controller.low).all() and (q <= controller.high).all()
        return (controller.kinematics.forward(q)[0] - goal).norm(dim=1)

    free = ToolDeltaConfig(step=0.02, orientation="free", damping=0.02)
    assert missed(free).max() < 0.01
    assert missed(ToolDeltaConfig(step=0.02, damping=0.02)).max() > 0.03


def test_a_free_orientation_needs_joint_commands_and_no_turns() -> None:
    from robot_rl.interface.command import ToolPose

    with pytest.raises(ConfigError, match="joint positions only"):
        ToolDeltaController(SO101, ToolDeltaConfig(orientation="free"), ToolPose)
    with pytest.raises(ValueError, match="leaves open"):
        ToolDeltaConfig(orientation="free", turn=0.1)
