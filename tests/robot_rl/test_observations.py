"""Observation terms and success tests are found by name and read the right view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.control import ToolDeltaConfig, ToolDeltaController
from robot_rl.errors import UnknownName
from robot_rl.observations import TERMS, Observer
from robot_rl.success import state_test

Build = Callable[..., Any]


@pytest.fixture
def observer(panda: Any) -> Callable[..., Observer]:
    actions = ToolDeltaController(panda, ToolDeltaConfig()).actions
    return lambda *names: Observer(names, panda, actions)


@pytest.fixture
def state(panda: Any, state_at: Build) -> Any:
    """Two robots whose every number is different."""
    q = torch.tensor(panda.home) + 0.01 * torch.arange(14.0).view(2, 7)
    cube = torch.tensor([[0.5, 0.1, 0.02, 1, 0, 0, 0], [0.4, -0.1, 0.03, 1, 0, 0, 0]])
    return state_at(
        q,
        joint_velocity=0.1 * q,
        gripper_width=torch.tensor([[0.05], [0.07]]),
        last_action=torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]),
        objects={"cube": cube, "bin": cube + 0.1},
    )


def wanted(state: Any) -> dict[str, Tensor]:
    cube = state.objects["cube"][:, :3]
    return {
        "joint_position": state.joint_position,
        "joint_velocity": state.joint_velocity,
        "tool_position": state.tool_position,
        "gripper_width": state.gripper_width,
        "last_action": state.last_action,
        "object_position:cube": cube,
        "object_to_tool:cube": cube - state.tool_position,
    }


def test_each_term_reads_its_view(observer: Callable[..., Observer], state: Any) -> None:
    expected = wanted(state)
    assert {name.split(":")[0] for name in expected} == set(TERMS), "a term without a test"
    for name, value in expected.items():
        one = observer(name)
        assert torch.equal(one(state), value), name
        assert one.spec.size == value.shape[1], name


def test_terms_are_concatenated_in_the_order_of_names(observer: Callable[..., Observer], state: Any) -> None:
    expected = wanted(state)
    names = list(reversed(expected))
    several = observer(*names)
    assert torch.equal(several(state), torch.cat([expected[n] for n in names], -1))
    assert several(state).dtype == torch.float32
    for name in names:
        field = name.replace("object_position:cube", "cube_position").replace("object_to_tool:cube", "cube_to_tool")
        assert torch.equal(several(state)[:, several.spec.slice(field)], expected[name])


def test_the_argument_chooses_the_object(observer: Callable[..., Observer], state: Any) -> None:
    both = observer("object_position:bin", "object_position:cube", "object_to_tool:bin")
    assert both.objects == ("bin", "cube")
    assert torch.equal(both(state)[:, :3], state.objects["bin"][:, :3])


def test_an_unknown_term_suggests_the_nearest(observer: Callable[..., Observer]) -> None:
    with pytest.raises(
        UnknownName, match="unknown observation term 'joint_positions'; did you mean joint_position"
    ) as error:
        observer("tool_position", "joint_positions")
    assert error.value.code == 2


@pytest.mark.parametrize("name", ["object_position", "joint_position:cube"])
def test_a_wrong_number_of_arguments_is_a_users_mistake(observer: Callable[..., Observer], name: str) -> None:
    from robot_rl.errors import UserError

    with pytest.raises(UserError, match=name.split(":")[0]):
        observer(name)


def test_lifted_needs_height_and_the_tool_nearby(state_at: Build, panda: Any) -> None:
    state = state_at(torch.tensor(panda.home).expand(4, 7))
    tool = state.tool_position[0]
    cube = torch.zeros(4, 7)
    cube[:, :3] = tool
    cube[1, 0] += 0.06  # thrown
    cube[2, 0] += 0.04
    cube[3, 2] = 0.1  # on the table, and far from the tool
    state.objects = {"cube": cube}
    assert state_test("lifted:cube:0.12")(state).tolist() == [True, False, True, False]
    height = float(tool[2])
    assert state_test(f"lifted:cube:{height - 0.001}")(state)[0]
    assert not state_test(f"lifted:cube:{height + 0.001}")(state)[0]


def test_an_unknown_state_test_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown success test 'lift'; did you mean lifted"):
        state_test("lift:cube:0.12")


def test_select_takes_rows_of_every_view(state: Any) -> None:
    second = state.select(torch.tensor([1]))
    assert torch.equal(second.joint_position, state.joint_position[1:])
    assert torch.equal(second.objects["bin"], state.objects["bin"][1:])
    assert second.last_action.shape == (1, 4)


@pytest.mark.parametrize("view", ["joint_position", "gripper_width", "cube"])
def test_finite_looks_at_every_view(state: Any, view: str) -> None:
    assert state.finite.tolist() == [True, True]
    tensor = state.objects["cube"] if view == "cube" else getattr(state, view)
    tensor[1, 0] = torch.nan
    assert state.finite.tolist() == [True, False]
