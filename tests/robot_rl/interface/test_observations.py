"""Observation terms and the `lifted` test: values, names, ranges and refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.interface.control import JointOffsetConfig, JointOffsetController, ToolDeltaConfig, ToolDeltaController
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.observations import TERMS, Observer, down
from robot_rl.interface.rotation import quat_to_matrix
from robot_rl.interface.spec import VectorSpec, box
from robot_rl.interface.success import state_test
from robot_rl.robots import robots
from robot_rl.util.errors import UserError

Build = Callable[..., Any]


@pytest.fixture
def observer(panda: Any) -> Callable[..., Observer]:
    actions = ToolDeltaController(panda, ToolDeltaConfig()).actions
    return lambda *names: Observer(names, panda, actions)


@pytest.fixture
def state(panda: Any, state_at: Build) -> Any:
    """State of two arms with distinct numbers."""
    q = torch.tensor(panda.home) + 0.01 * torch.arange(14.0).view(2, 7)
    cube = torch.tensor([[0.5, 0.1, 0.02, 1, 0, 0, 0], [0.4, -0.1, 0.03, 1, 0, 0, 0]])
    return state_at(
        q, joint_velocity=0.1 * q, gripper_width=torch.tensor([[0.05], [0.07]]),
        last_action=torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]),
        instruction=torch.tensor([[3.0], [7.0]]), objects={"cube": cube, "bin": 2 * cube},
        object_joints={"door": torch.tensor([[0.1, 0.2], [0.3, 0.4]])},
    )  # fmt: skip


def expected_of_arm(state: Any) -> dict[str, Tensor]:
    cube, turned = state.objects["cube"][:, :3], quat_to_matrix(state.objects["cube"][:, 3:])
    tool = Kinematics(robots.get("panda")).forward(state.joint_position)[1]
    in_tool = torch.einsum("nij,nik->njk", tool, turned)
    return {
        "joint_position": state.joint_position, "joint_velocity": state.joint_velocity,
        "tool_position": state.tool_position, "gripper_width": state.gripper_width, "last_action": state.last_action,
        "instruction": state.instruction, "object_position:cube": cube,
        "object_to_tool:cube": cube - state.tool_position, "object_to_object:bin:cube": cube,
        "tool_rotation": torch.cat([tool[:, :, 0], tool[:, :, 1]], -1),
        "object_joint:door": torch.tensor([[0.1], [0.3]]), "object_joint:door:1": torch.tensor([[0.2], [0.4]]),
        "object_heading:cube": torch.nn.functional.normalize(turned[:, :2, 0]),
        "object_in_tool:cube": torch.cat([in_tool[:, :, 0], in_tool[:, :, 1]], -1),
    }  # fmt: skip


COMMAND = VectorSpec((box("velocity", "x y", "m/s", -1.0, 1.0), box("turn", "yaw", "rad/s", -2.0, 2.0)))


@pytest.fixture
def legged_observer(go2: Any) -> Callable[..., Observer]:
    actions = JointOffsetController(go2, JointOffsetConfig()).actions
    return lambda *names: Observer(names, go2, actions, COMMAND)


@pytest.fixture
def walking(standing: Build) -> Any:
    """State of two legged robots with distinct numbers."""
    ground = {"ground_height": torch.zeros(2, 1), "height_scan": torch.zeros(2, 9)}
    state, rng = standing(2, **ground), torch.Generator().manual_seed(0)
    state = state.map(lambda name, view: torch.randn(view.shape, generator=rng))
    state.base_quat = torch.nn.functional.normalize(state.base_quat)
    state.phase, state.command[1] = torch.tensor([[0.25], [0.6]]), 0.0
    return state


def expected_of_legs(state: Any) -> dict[str, Tensor]:
    return {
        "joint_position": state.joint_position,
        "joint_velocity": state.joint_velocity,
        "last_action": state.last_action,
        "angular_velocity": state.base_angular_velocity,
        "projected_gravity": -quat_to_matrix(state.base_quat)[:, 2],  # R^T (0, 0, -1)
        "command": state.command,
        "gait_clock": torch.tensor([[1.0, 0.0], [0.0, 0.0]]),  # a quarter of the cycle; zero command
        "base_velocity": state.base_velocity,
        "base_height": state.base_position[:, 2:] - state.ground_height,
        "height_scan:0.2:0.2:0.1": state.height_scan + 0.32,
        "foot_force": state.foot_force / 100,
    }


def test_each_term_reads_its_view(observer: Any, state: Any, legged_observer: Any, walking: Any) -> None:
    arm, legs = expected_of_arm(state), expected_of_legs(walking)
    assert {name.split(":")[0] for name in arm | legs} == set(TERMS), "every term is tested"
    for observe, of, expected in ((observer, state, arm), (legged_observer, walking, legs)):
        for name, value in expected.items():
            one = observe(name)
            assert torch.allclose(one(of), value, atol=1e-6), name
            assert one.spec.size == value.shape[1], name
            assert one(of).dtype == torch.float32, name


def test_gravity_in_the_trunk_frame(standing: Build) -> None:
    """Level, nose down, on the left side, on the back, and level with another heading."""
    half = 0.5**0.5
    quat = torch.tensor([[1.0, 0, 0, 0], [half, 0, half, 0], [half, -half, 0, 0], [0, 1, 0, 0], [half, 0, 0, half]])
    seen = down(standing(5, base_quat=quat).base_quat)
    assert torch.allclose(seen, torch.tensor([[0.0, 0, -1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1]]), atol=1e-6)


def test_names_and_ranges_of_a_legged_robots_terms(legged_observer: Callable[..., Observer], go2: Any) -> None:
    spec = legged_observer("command", "foot_force", "joint_velocity", "last_action").spec
    assert spec.names[:3] == ["command.velocity.x", "command.velocity.y", "command.turn.yaw"]
    assert spec.high[:3].tolist() == [1.0, 1.0, 2.0] and spec.low[:3].tolist() == [-1.0, -1.0, -2.0]
    assert spec.names[3:7] == [f"foot_force.{foot}" for foot in go2.base.feet]
    assert torch.equal(spec.high[spec.slice("joint_velocity")], go2.limit("velocity"))
    assert spec.names[-1] == f"last_action.joint_offset.{go2.joint_names[-1]}"


def test_terms_of_another_robot_are_refused(legged_observer: Any, observer: Any) -> None:
    for name in ("tool_position", "object_position:cube", "gripper_width"):
        with pytest.raises(UserError, match="robot 'go2' has no (tool|gripper) to observe"):
            legged_observer(name)
    for name, message in (("foot_force", "'panda' has no feet"), ("command", "with a command")):
        with pytest.raises(UserError, match=message):
            observer(name)


def test_terms_are_concatenated_in_order(observer: Callable[..., Observer], state: Any) -> None:
    expected = expected_of_arm(state)
    names = list(reversed(expected))
    several = observer(*names)
    assert torch.equal(several(state), torch.cat([expected[n] for n in names], -1))
    assert several(state).dtype == torch.float32
    for name in names:
        field = observer(name).spec.fields[0].name
        assert torch.equal(several(state)[:, several.spec.slice(field)], expected[name])


def test_lifted_requires_height_and_a_close_tool(state_at: Build, panda: Any) -> None:
    state = state_at(torch.tensor(panda.home).expand(4, 7))
    tool = state.tool_position[0]
    cube = torch.zeros(4, 7)
    cube[:, :3] = tool
    cube[1, 0] += 0.06  # thrown
    cube[2, 0] += 0.04
    cube[3, 2] = 0.1  # on the table, far from the tool
    state.objects = {"cube": cube}
    assert state_test("lifted:cube:0.12")(state).tolist() == [True, False, True, False]
    height = float(tool[2])
    assert state_test(f"lifted:cube:{height - 0.001}")(state)[0]
    assert not state_test(f"lifted:cube:{height + 0.001}")(state)[0]
