"""Tests of the state: batched functions of the views, named in a task and carried in its bundle."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from torch import Tensor

from robot_rl.interface.observations import down
from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.util.errors import Misfit, UnknownName
from robot_rl.util.limits import Interval, NonNegative, Positive, fault

Test = Callable[[RobotState], Tensor]


def lifted(name: str, height: NonNegative) -> Test:
    """The object's centre is `height` metres above the table and within 5 cm of the tool, so not thrown."""

    def test(state: RobotState) -> Tensor:
        position = state.objects[name][:, :3]
        return (position[:, 2] > height) & ((position - state.tool_position).norm(dim=-1) < 0.05)

    return test


def reached(name: str, distance: Positive) -> Test:
    """The tool is within `distance` metres of the object's centre."""
    return lambda state: (state.objects[name][:, :3] - state.tool_position).norm(dim=-1) < distance


def fallen(tilt: Annotated[float, Interval(ge=0, le=180)], height: NonNegative) -> Test:
    """The trunk is tilted by more than `tilt` degrees or, where its height is known, below `height` metres."""
    upright = math.cos(math.radians(tilt))

    def test(state: RobotState) -> Tensor:
        over = down(state.base_quat)[:, 2] > -upright
        return over if state.base_position is ABSENT else over | (state.base_position[:, 2] < height)

    return test


TESTS: dict[str, Callable[..., Test]] = {"lifted": lifted, "reached": reached, "fallen": fallen}


def state_test(name: str) -> Test:
    """Build a test from its name and colon-separated arguments, for example "lifted:cube:0.12"."""
    build, arguments = _parsed(name)
    return build(**arguments)


def objects_of(name: str) -> tuple[str, ...]:
    """The objects whose pose a test reads: arguments called `name`."""
    arguments = _parsed(name)[1]
    return (arguments["name"],) if "name" in arguments else ()


def _parsed(text: str) -> tuple[Callable[..., Test], dict[str, Any]]:
    """What builds a test, and its arguments by name, each of the type that the function gives it."""
    test, *given = text.split(":")
    if test not in TESTS:
        raise UnknownName("test", test, TESTS)
    names, hints = tuple(inspect.signature(TESTS[test]).parameters), get_type_hints(TESTS[test], include_extras=True)
    if len(given) != len(names) or not all(given):
        raise Misfit(f"test {text!r} is written {':'.join([test, *(f'<{n}>' for n in names)])}")
    arguments: dict[str, Any] = {}
    for name, value in zip(names, given, strict=True):
        hint = hints.get(name, str)
        arguments[name] = value if hint is str else _number(value)
        if found := fault(arguments[name], hint):
            raise Misfit(f"test {text!r}: {name} is {value}; it must be {found[1]}")
    return TESTS[test], arguments


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
