"""End-effector control: what a step of the tool does to the joints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.interface.control import ToolDeltaConfig, ToolDeltaController
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import rotation_error

Build = Callable[..., Any]


def around_home(panda: Any, count: int, spread: float = 0.1) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.tensor(panda.home) + spread * (2 * torch.rand(count, 7, generator=rng) - 1)


def steps(count: int, size: float = 0.02) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    delta = size * (2 * torch.rand(count, 3, generator=rng) - 1)
    return torch.cat([delta, torch.full((count, 1), 0.03)], -1)


@pytest.mark.parametrize(("damping", "size", "tolerance"), [(1e-3, 0.005, 2e-4), (0.05, 0.02, 0.004)])
def test_tool_moves_by_the_commanded_step(
    panda: Any, state_at: Build, damping: float, size: float, tolerance: float
) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig(damping=damping))
    q = torch.tensor(panda.home).expand(64, 7)
    action = steps(64, size)
    target = controller(state_at(q), action)
    before, after = (Kinematics(panda).forward(x)[0] for x in (q, target.position))
    assert ((after - before) - action[:, :3]).norm(dim=-1).max() < tolerance


@pytest.mark.parametrize(
    ("asked", "width"), [(0.0, 0.0), (0.03, 0.0), (0.05, 0.08), (0.08, 0.08), (float("nan"), None)]
)
def test_the_gripper_shuts_or_opens_as_a_whole(panda: Any, state_at: Build, asked: float, width: float | None) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    action = torch.tensor([[0.0, 0.0, 0.0, asked]])
    gripper = float(controller(state_at(torch.tensor(panda.home)[None]), action).gripper)
    assert gripper == pytest.approx(width) if width is not None else gripper != gripper


def test_action_range_is_the_step_and_the_gripper(panda: Any) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig(step=0.03))
    assert controller.actions.to_physical(torch.tensor([1.0, -1.0, 0.0, -1.0])).tolist() == pytest.approx(
        [0.03, -0.03, 0, 0]
    )
    assert controller.actions.high[3] == pytest.approx(panda.gripper.width)


def test_tool_stays_inside_the_workspace(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    low, high = torch.tensor(panda.tool.workspace)
    for direction in torch.cat([torch.eye(3), -torch.eye(3)]):
        q = torch.tensor(panda.home)[None]
        action = torch.cat([0.04 * direction, torch.zeros(1)])[None]
        for _ in range(60):
            q = controller(state_at(q), action).position
        position = Kinematics(panda).forward(q)[0][0]
        assert ((position > low - 0.003) & (position < high + 0.003)).all(), direction
        wall = torch.where(direction > 0, high, low)[direction != 0]
        assert torch.allclose(position[direction != 0], wall, atol=0.01), "the wall can be reached"


@pytest.mark.parametrize("lead", [0.02, 0.2])
def test_lead_bounds_every_joint_and_keeps_the_direction(panda: Any, state_at: Build, lead: float) -> None:
    q = around_home(panda, 32, 0.3)
    action = steps(32, 0.04)
    free = ToolDeltaController(panda, ToolDeltaConfig(lead=3.0))(state_at(q), action).position - q
    assert free.abs().max() < 3.0, "not bound"
    bound = ToolDeltaController(panda, ToolDeltaConfig(lead=lead))(state_at(q), action).position - q
    assert bound.abs().max() <= lead + 1e-6
    inside = (q + free > panda.limit("low")).all(-1) & (q + free < panda.limit("high")).all(-1)
    assert inside.any() and torch.allclose(
        torch.nn.functional.cosine_similarity(free[inside], bound[inside]),
        torch.ones(int(inside.sum())),
        atol=1e-4,
    )
    if lead == 0.02:
        assert (bound.abs().amax(-1) > 0.0199).any(), "the bound was never active"


def test_targets_stay_inside_the_position_limits(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    low, high = panda.limit("low"), panda.limit("high")
    rng = torch.Generator().manual_seed(3)
    edge = torch.where(torch.rand(64, 7, generator=rng) < 0.5, low, high)
    target = controller(state_at(edge), steps(64, 0.04)).position
    assert ((target >= low) & (target <= high)).all()


def test_orientation_is_restored(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    q = around_home(panda, 16, 0.2)
    hold = torch.zeros(16, 4)
    start = rotation_error(controller.kinematics.forward(q)[1], controller.rotation).norm(dim=-1)
    assert start.max() > 0.1
    for _ in range(60):
        q = controller(state_at(q), hold).position
    assert rotation_error(controller.kinematics.forward(q)[1], controller.rotation).norm(dim=-1).max() < 0.01


def test_posture_comes_back_without_moving_the_tool(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    home = torch.tensor(panda.home)[None]
    _, _, jacobian = controller.kinematics.jacobian(home)
    null = torch.linalg.svd(jacobian)[2][:, -1]  # the elbow's own motion
    q = home + 0.3 * null
    for _ in range(80):
        q = controller(state_at(q), torch.zeros(1, 4)).position
    tool = controller.kinematics.forward(home)[0]
    away = controller.kinematics.forward(home + 0.3 * null)[0]
    assert ((q - home) * null).sum().abs() < 0.1
    assert (controller.kinematics.forward(q)[0] - tool).norm() < (away - tool).norm() + 0.02


def test_rows_are_independent(panda: Any, state_at: Build) -> None:
    controller = ToolDeltaController(panda, ToolDeltaConfig())
    q, action = around_home(panda, 8), steps(8)
    together = controller(state_at(q), action).position
    alone = torch.cat([controller(state_at(q[k : k + 1]), action[k : k + 1]).position for k in range(8)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_an_arm_without_gripper_moves_its_tool_alone(panda: Any, state_at: Build) -> None:
    bare, q = replace(panda, gripper=None), around_home(panda, 4)
    controller = ToolDeltaController(bare, ToolDeltaConfig())
    assert controller.actions.names == ["tool_delta.x", "tool_delta.y", "tool_delta.z"]
    assert not controller.still(torch.rand(4, 3), torch.zeros(4, 1)).any()
    alone = controller(state_at(q), steps(4)[:, :3])
    with_gripper = ToolDeltaController(panda, ToolDeltaConfig())(state_at(q), steps(4))
    assert torch.equal(alone.position, with_gripper.position)
    assert torch.equal(alone.gripper, torch.zeros(4, 1))


def test_a_robot_without_tool_is_refused_by_name(go2: Any) -> None:
    with pytest.raises(ValueError, match="'go2' has no tool"):
        ToolDeltaController(go2, ToolDeltaConfig())
