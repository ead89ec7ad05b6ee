"""Terms and tests written as text, converted by the annotations of their functions."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from robot_rl.interface.observations import Context, Observer, Term
from robot_rl.interface.spec import VectorSpec, box
from robot_rl.interface.state import ObjectName, RobotState
from robot_rl.interface.success import Test, objects_of, state_test
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.limits import PositiveFloat, PositiveInt

ACTIONS = VectorSpec((box("a", "x", "1", -1.0, 1.0),))


def between(lid: ObjectName, on: Context, pot: ObjectName, scale: PositiveFloat = 1.0) -> Term:
    """Term with the context between two objects."""
    field = box(f"{lid}_{pot}_{on.robot.name}", "x y z", "m", -1.0, 1.0)
    return Term(field, lambda s: scale * (s.objects[lid][:, :3] - s.objects[pot][:, :3]))


def stacked(lower: ObjectName, upper: ObjectName, times: PositiveInt, how: Literal["on", "beside"] = "on") -> Test:
    sign = 1 if how == "on" else -1
    return lambda s: sign * (s.objects[upper][:, 2] - s.objects[lower][:, 2]) > 0.01 * times


def untyped_test(command: str) -> str:
    raise AssertionError("functions without the annotation must not be called")


def unannotated(name):  # type: ignore[no-untyped-def]
    return lambda s: s


def unsupported(name: list[str]) -> Test:
    raise AssertionError("list arguments are not supported")


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the functions of this file as a module of another package."""
    module = ModuleType("some_lab.terms")
    vars(module).update({f.__name__: f for f in (between, stacked, untyped_test, unannotated, unsupported)})
    monkeypatch.setitem(sys.modules, "some_lab", ModuleType("some_lab"))
    monkeypatch.setitem(sys.modules, "some_lab.terms", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin="terms.py"))


@pytest.fixture
def state() -> RobotState:
    pose = torch.tensor([[0.5, 0.1, 0.02, 1, 0, 0, 0], [0.4, -0.1, 0.06, 1, 0, 0, 0]])
    return RobotState(*[torch.zeros(2, 1)] * 3, objects={"a": pose, "b": 2 * pose})


def test_arguments_of_terms_are_filled_by_annotation(panda: Any, state: RobotState) -> None:
    names = ("some_lab.terms:between:a:b", "some_lab.terms:between:b:a:3")
    observer = Observer(names, panda, ACTIONS)
    assert observer.objects == ("a", "b")
    assert observer.spec.fields[0].name == "a_b_panda"
    a, b = (state.objects[name][:, :3] for name in "ab")
    assert torch.equal(observer(state), torch.cat([a - b, 3 * (b - a)], 1))
    with pytest.raises(ConfigError, match="stacked is not annotated to return Term"):
        Observer(["some_lab.terms:stacked:a:b:3"], panda, ACTIONS)


def test_tests_of_other_packages_read_objects(state: RobotState) -> None:
    assert state_test("some_lab.terms:stacked:a:b:3")(state).tolist() == [False, True]
    assert state_test("some_lab.terms:stacked:b:a:1:beside")(state).tolist() == [True, True]
    assert objects_of("some_lab.terms:stacked:b:a:3") == ("b", "a")
    assert objects_of("together:a:b:0.5") == ("a", "b")
    assert state_test("together:a:b:0.45")(state).tolist() == [False, True]


@pytest.mark.parametrize(("text", "message"), [
    ("some_lab.terms:stacked:a:b", "is written some_lab.terms:stacked:<lower>:<upper>:<times>:<how>"),
    ("some_lab.terms:stacked:a:b:0", "times is 0"),
    ("some_lab.terms:stacked:a:b:1.5", "times is 1.5"),
    ("some_lab.terms:stacked:a:b:1:under", "how is under.*'on'.*'beside'"),
    ("some_lab.terms:untyped_test:rm", "untyped_test is not annotated to return"),
    ("some_lab.terms:unannotated:a", "unannotated is not annotated to return"),
    ("some_lab.terms:unsupported:a", r"name is annotated list\[str\]; annotate it ObjectName"),
    ("some_lab.terms:gone:a", "it has no 'gone'"),
    ("some_lab.nowhere:test:a", "some_lab.nowhere"),
    ("together:a:0.5", "is written together:<first>:<second>:<distance>"),
    ("together:a:b:c:0.5", "is written together:<first>:<second>:<distance>"),
])  # fmt: skip
def test_invalid_calls_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        state_test(text)
    assert error.value.code == 2
