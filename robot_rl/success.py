"""Success tests: batched functions of the state views, named in a task and carried in its bundle."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from robot_rl.errors import UnknownName
from robot_rl.state import RobotState

SuccessTest = Callable[[RobotState], Tensor]


def lifted(name: str, height: str) -> SuccessTest:
    """The object's centre is `height` metres above the table and within 5 cm of the tool, so not thrown."""
    metres = float(height)

    def test(state: RobotState) -> Tensor:
        position = state.objects[name][:, :3]
        return (position[:, 2] > metres) & ((position - state.tool_position).norm(dim=-1) < 0.05)

    return test


TESTS: dict[str, Callable[..., SuccessTest]] = {"lifted": lifted}


def success_test(name: str) -> SuccessTest:
    """Build a test from its name and colon-separated arguments, for example "lifted:cube:0.12"."""
    test, *arguments = name.split(":")
    if test not in TESTS:
        raise UnknownName("success test", test, TESTS)
    return TESTS[test](*arguments)
