"""Tests of the state: batched functions of the views, named in a task and carried in its bundle."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from robot_rl.errors import UnknownName
from robot_rl.observations import down
from robot_rl.state import ABSENT, RobotState

Test = Callable[[RobotState], Tensor]


def lifted(name: str, height: str) -> Test:
    """The object's centre is `height` metres above the table and within 5 cm of the tool, so not thrown."""
    metres = float(height)

    def test(state: RobotState) -> Tensor:
        position = state.objects[name][:, :3]
        return (position[:, 2] > metres) & ((position - state.tool_position).norm(dim=-1) < 0.05)

    return test


def reached(name: str, distance: str) -> Test:
    """The tool is within `distance` metres of the object's centre."""
    metres = float(distance)
    return lambda state: (state.objects[name][:, :3] - state.tool_position).norm(dim=-1) < metres


def fallen(tilt: str, height: str) -> Test:
    """The trunk is tilted by more than `tilt` degrees or, where its height is known, below `height` metres."""
    upright, metres = math.cos(math.radians(float(tilt))), float(height)

    def test(state: RobotState) -> Tensor:
        over = down(state.base_quat)[:, 2] > -upright
        return over if state.base_position is ABSENT else over | (state.base_position[:, 2] < metres)

    return test


TESTS: dict[str, Callable[..., Test]] = {"lifted": lifted, "reached": reached, "fallen": fallen}


def state_test(name: str) -> Test:
    """Build a test from its name and colon-separated arguments, for example "lifted:cube:0.12"."""
    test, *arguments = name.split(":")
    if test not in TESTS:
        raise UnknownName("test", test, TESTS)
    return TESTS[test](*arguments)
