"""Success and failure tests on robot states."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from robot_rl.interface.state import ABSENT
from robot_rl.interface.success import state_test
from robot_rl.robots import robots
from robot_rl.util.errors import UserError

Build = Callable[..., Any]


def tilted(degrees: float, x: float, y: float, heading: float = 0.0) -> list[float]:
    """Return the orientation of a trunk with a heading, then tilted about the horizontal axis (x, y) of its frame."""
    half, turn = math.radians(degrees) / 2, heading / 2
    w, a, b = math.cos(half), math.sin(half) * x, math.sin(half) * y
    c, s = math.cos(turn), math.sin(turn)
    return [c * w, c * a - s * b, c * b + s * a, s * w]


@pytest.mark.parametrize("axis", [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0), (0.6, 0.8)])
@pytest.mark.parametrize("heading", [0.0, 2.0])
def test_fallen_detects_tilt_in_all_directions(standing: Build, axis: tuple[float, float], heading: float) -> None:
    quat = torch.tensor([tilted(d, *axis, heading) for d in (0, 59, 61, 120, 180)])
    assert state_test("fallen:60:0.15")(standing(5, base_quat=quat)).tolist() == [False, False, True, True, True]


def test_standing_is_upright_and_high_enough(standing: Build) -> None:
    state = standing(3, base_quat=torch.tensor([tilted(d, 1, 0) for d in (10, 20, 10)]))
    state.base_position[:, 2] = torch.tensor([0.3, 0.3, 0.2])
    assert state_test("standing:15:0.25")(state).tolist() == [True, False, False]


def test_fallen_uses_its_arguments_and_the_height_if_known(standing: Build) -> None:
    state = standing(3)
    state.base_position[:, 2] = torch.tensor([0.149, 0.151, 0.4])
    fallen = state_test("fallen:60:0.15")
    assert fallen(state).tolist() == [True, False, False]
    state.base_position = ABSENT
    assert not fallen(state).any(), "robots measure only the tilt"
    state = standing(2, base_quat=torch.tensor([tilted(20, 1, 0), tilted(40, 1, 0)]))
    assert state_test("fallen:30:0.1")(state).tolist() == [False, True]
    assert state_test("fallen:10:0.1")(state).tolist() == [True, True]
    assert state_test("fallen:60:0.5")(state).tolist() == [True, True]


def test_reached_uses_the_distance_in_all_directions(state_at: Build, panda: Any) -> None:
    state = state_at(torch.tensor(panda.home).repeat(3, 1))
    offset = torch.tensor([[0.019, 0.0, 0.0], [0.012, -0.012, 0.012], [0.0, 0.0, 0.021]])
    quat = torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(3, 1)
    state.objects["target"] = torch.cat([state.tool_position + offset, quat], 1)
    assert state_test("reached:target:0.02")(state).tolist() == [True, False, False]


@pytest.mark.parametrize(("test", "message"), [
    ("reached:cube", "test 'reached:cube' is written reached:<object>:<distance>"),
    ("reached::0.06", "is written reached:<object>:<distance>"),
    ("fallen:60:0.15:3", "is written fallen:<tilt>:<height>"),
    ("fallen:abc:0.15", "test 'fallen:abc:0.15': tilt is abc; it must be "),
    ("fallen:nan:0.15", "tilt is nan; it must be "),
    ("fallen:270:0.15", "tilt is 270; it must be "),
    ("reached:cube:-0.06", "distance is -0.06; it must be "),
    ("raeched:cube:0.06", "unknown test 'raeched'; did you mean reached"),
])  # fmt: skip
def test_invalid_tests_are_refused(test: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        state_test(test)
    assert error.value.code == 2


def test_placed_objects_must_be_on_the_table_and_released(state_at: Build) -> None:
    state = state_at(torch.tensor(robots.get("panda").home)[None])
    tool = state.tool_position[0]
    flat = torch.tensor([1.0, 0, 0, 0])

    def at(x: float, y: float, z: float) -> torch.Tensor:
        return torch.cat([torch.tensor([x, y, z]), flat])[None]

    state.objects = {"a": at(0.4, 0.25, 0.02), "b": at(0.45, 0.25, 0.02), "tray": at(0.42, 0.24, 0.015)}
    for test, won in (
        ("beyond:a:0.2", True), ("beyond:a:0.3", False), ("beyond:a:-0.2", False), ("beside:a:b:0.06", True),
        ("beside:a:b:0.04", False), ("inside:a:tray:0.05", True), ("inside:b:tray:0.02", False),
    ):  # fmt: skip
        assert bool(state_test(test)(state)) == won, test
    state.objects["a"] = at(0.4, 0.25, 0.2)
    for test in ("beyond:a:0.2", "beside:a:b:0.06", "inside:a:tray:0.05"):
        assert not state_test(test)(state), f"{test}: in the air"
    held = torch.cat([tool, flat])[None]
    state.objects = {"a": held, "b": held + torch.tensor([0.05, 0, 0, 0, 0, 0, 0]), "tray": held}
    for test in ("beside:a:b:0.06", "inside:a:tray:0.05"):
        assert not state_test(test)(state), f"{test}: still in the gripper"


def poses(*rows: tuple[float, float, float, float]) -> torch.Tensor:
    """Return poses (n, 7) from x, y, z, m, and yaw, degrees."""
    half = [math.radians(yaw) / 2 for *_, yaw in rows]
    return torch.tensor([[*row[:3], math.cos(h), 0, 0, math.sin(h)] for row, h in zip(rows, half, strict=True)])


def test_opened_reads_the_joint_of_an_object(state_at: Build, panda: Any) -> None:
    state = state_at(torch.tensor(panda.home).repeat(2, 1))
    state.object_joints["door"] = torch.tensor([[0.2, 0.0], [0.1, 0.5]])
    assert state_test("opened:door:0.15")(state).tolist() == [True, False]
    assert state_test("opened:door:0.15:1")(state).tolist() == [False, True]


def test_stacked_needs_support_and_release(state_at: Build, panda: Any) -> None:
    state = state_at(torch.tensor(panda.home).repeat(4, 1))
    x, y, z = state.tool_position[0].tolist()
    state.objects["base"] = poses(*[(0.5, 0.2, 0.02, 0)] * 3, (x, y, z - 0.04, 0))
    state.objects["cube"] = poses((0.51, 0.21, 0.06, 9), (0.54, 0.2, 0.06, 0), (0.5, 0.2, 0.02, 0), (x, y, z, 0))
    assert state_test("stacked:cube:base:0.025")(state).tolist() == [True, False, False, False]


def test_inserted_needs_depth_on_the_axis(state_at: Build, panda: Any) -> None:
    state = state_at(torch.tensor(panda.home).repeat(3, 1))
    state.objects["socket"] = poses(*[(0.5, 0.2, 0.02, 0)] * 3)
    state.objects["peg"] = poses((0.501, 0.2, 0.044, 0), (0.5, 0.2, 0.06, 0), (0.53, 0.2, 0.04, 0))
    assert state_test("inserted:peg:socket:0.004:0.028")(state).tolist() == [True, False, False]


def test_matched_compares_yaw_across_the_half_turn(state_at: Build, panda: Any) -> None:
    state = state_at(torch.tensor(panda.home).repeat(4, 1))
    state.objects["goal"] = poses(*[(0.5, 0.2, 0.0, 175)] * 4)
    near, far = (0.5, 0.21, 0.02), (0.5, 0.23, 0.02)
    state.objects["block"] = poses((*near, -178), (*near, 150), (*far, 175), (*near, 166))
    assert state_test("matched:block:goal:0.02:10")(state).tolist() == [True, False, False, True]
