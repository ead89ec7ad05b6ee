"""Joint control: setpoints of the motors' springs as offsets from home."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from robot_rl.interface.control import (
    JointOffsetConfig,
    JointOffsetController,
    ToolDeltaConfig,
    ToolDeltaController,
    build_controller,
    controller_config,
)
from robot_rl.util.errors import UnknownName

Build = Callable[..., Any]


def test_zero_action_is_the_home_posture(go2: Any, standing: Build) -> None:
    controller = JointOffsetController(go2, JointOffsetConfig())
    unit = torch.zeros(2, 12)
    target = controller(standing(2), controller.actions.to_physical(unit))
    assert torch.allclose(target.position, torch.tensor(go2.home).repeat(2, 1), atol=1e-7)
    assert torch.equal(target.gripper, torch.zeros(2, 1))


def test_action_is_the_offset_of_its_joint(go2: Any, standing: Build) -> None:
    controller = JointOffsetController(go2, JointOffsetConfig(reach=0.3))
    physical = controller.actions.to_physical(torch.eye(12))
    assert torch.allclose(physical, 0.3 * torch.eye(12), atol=1e-7)
    offset = controller(standing(12), physical).position - torch.tensor(go2.home)
    assert torch.allclose(offset, 0.3 * torch.eye(12), atol=1e-6)


def test_setpoints_do_not_depend_on_the_measured_state(go2: Any, standing: Build) -> None:
    controller = JointOffsetController(go2, JointOffsetConfig())
    action = 0.2 * torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    fallen = standing(3, joint_position=torch.full((3, 12), 9.0), joint_velocity=torch.full((3, 12), 5.0))
    assert torch.equal(controller(standing(3), action).position, controller(fallen, action).position)


def test_setpoints_stay_inside_the_position_limits(go2: Any, standing: Build) -> None:
    controller = JointOffsetController(go2, JointOffsetConfig(reach=3.5))
    for sign, limit in ((9.0, go2.limit("high")), (-9.0, go2.limit("low"))):
        assert torch.equal(controller(standing(1), torch.full((1, 12), sign)).position[0], limit)


SWING = JointOffsetConfig(swing=(0.0, 0.3, -0.6) * 4, swing_from=(0.5,) * 3 + (0.0,) * 6 + (0.5,) * 3)
COMMAND = torch.tensor([[0.5, 0.0, 0.0]])


def test_legs_swing_in_their_half_of_the_gait_cycle(go2: Any, standing: Build) -> None:
    """Front right and rear left in the first half, the other diagonal in the second, highest in the middle."""
    controller = JointOffsetController(go2, SWING)
    phase = torch.tensor([[0.0], [0.25], [0.5], [0.75], [0.9999]])
    state = standing(5, phase=phase, command=COMMAND.expand(5, 3))
    offset = (controller(state, torch.zeros(5, 12)).position - torch.tensor(go2.home)).view(5, 4, 3)
    assert torch.allclose(offset[[0, 2, 4]], torch.zeros(3, 4, 3), atol=1e-5)
    top = torch.tensor([0.0, 0.3, -0.6])
    for moment, up, down in ((1, [1, 2], [0, 3]), (3, [0, 3], [1, 2])):
        assert torch.allclose(offset[moment, up], top.expand(2, 3), atol=1e-5)
        assert torch.allclose(offset[moment, down], torch.zeros(2, 3), atol=1e-6)


def test_zero_command_gives_no_swing_and_actions_add_to_the_swing(go2: Any, standing: Build) -> None:
    controller = JointOffsetController(go2, SWING)
    state = standing(2, phase=torch.full((2, 1), 0.25), command=torch.cat([torch.zeros(1, 3), COMMAND]))
    rest, walking = controller(state, torch.zeros(2, 12)).position
    assert torch.allclose(rest, torch.tensor(go2.home), atol=1e-6)
    assert (walking - rest).abs().max() > 0.5
    action = 0.1 * torch.ones(2, 12)
    assert torch.allclose(controller(state, action).position - action, torch.stack([rest, walking]), atol=1e-6)


STRIDE = replace(SWING, swing=(0.0,) * 12, stride=((0.0, 0.3, 0.1), (-0.3, 0.0, 0.1), (0.0, 0.0, 0.0)) * 4)


def test_legs_stride_as_commanded(go2: Any, standing: Build) -> None:
    """Offsets are the stride at touchdown, change linearly to the opposite in stance, and return smoothly in swing."""
    controller = JointOffsetController(go2, STRIDE)
    phase = torch.linspace(0, 1, 1001)[:, None]
    command = torch.tensor([[0.5, -0.2, 1.0]])
    state = standing(1001, phase=phase, command=command.expand(1001, 3))
    offset = controller(state, torch.zeros(1001, 12)).position - torch.tensor(go2.home)
    ahead = command @ torch.tensor(STRIDE.stride).T
    assert ahead[0, :3].tolist() == pytest.approx([0.04, -0.05, 0.0])
    rises_first = offset[:, 3:6]  # leg that swings in the first half of the cycle
    assert torch.allclose(rises_first[[500, 750, 1000]], ahead[:, 3:6] * torch.tensor([[1.0], [0], [-1]]), atol=1e-5)
    assert torch.allclose(offset[:501, :3], rises_first[500:], atol=1e-5), "half a cycle later"
    speed = rises_first.double().diff(dim=0)
    assert torch.allclose(speed[500:], speed[500:].mean(0), atol=1e-6), "constant speed in stance"
    assert torch.allclose(speed[[0, 499]], speed[500:].mean(0).expand(2, 3), atol=0.05 * float(speed[500:].abs().max()))
    assert rises_first.abs().max() < 1.1 * ahead.abs().max()


def test_wrong_number_of_offsets_is_refused(go2: Any) -> None:
    for config, name in (
        (JointOffsetConfig(swing=(0.1,)), "controller.swing has 1 numbers for the 12 joints"),
        (JointOffsetConfig(swing=(0.1,) * 12), "swing_from has 0 numbers"),
        (replace(SWING, stride=((0.1,),)), "controller.stride has 1 numbers for the 12 joints"),
        (JointOffsetConfig(stride=((0.1,),) * 12), "controller.swing has 0 numbers"),
    ):
        with pytest.raises(ValueError, match=name):
            JointOffsetController(go2, config)


def test_reach_beyond_all_limits_is_refused(go2: Any) -> None:
    with pytest.raises(
        ValueError, match=r"controller\.reach is 6 rad, but no joint of robot 'go2' has more than 3\.53"
    ):
        JointOffsetController(go2, JointOffsetConfig(reach=6.0))


def test_stiff_robot_is_refused(panda: Any) -> None:
    with pytest.raises(ValueError, match="'panda' has no joint stiffness and damping"):
        JointOffsetController(panda, JointOffsetConfig())


def test_controller_is_built_from_its_kind(go2: Any, panda: Any) -> None:
    assert isinstance(build_controller(go2, JointOffsetConfig()), JointOffsetController)
    assert isinstance(build_controller(panda, ToolDeltaConfig()), ToolDeltaController)
    for config in (JointOffsetConfig(rate=25.0, reach=0.2), SWING, STRIDE, ToolDeltaConfig(step=0.01)):
        assert controller_config(json.loads(json.dumps(asdict(config)))) == config


def test_unknown_kind_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown controller 'joint_offsets'; did you mean joint_offset"):
        controller_config({"kind": "joint_offsets"})
