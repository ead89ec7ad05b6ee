"""Types of settings with ranges, and their validation."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

from annotated_types import Interval
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic import NonNegativeFloat as NonNegativeFloat
from pydantic import NonNegativeInt as NonNegativeInt
from pydantic import PositiveFloat as PositiveFloat
from pydantic import PositiveInt as PositiveInt
from pydantic.errors import PydanticUserError

from robot_rl.util.errors import ConfigError

Fraction = Annotated[float, Interval(ge=0, le=1)]
"""Number from 0 to 1."""
PositiveFraction = Annotated[float, Interval(gt=0, le=1)]
"""Number above 0, up to 1."""
Seed = Annotated[int, Interval(ge=0, le=2**62)]
"""Seed of a 64-bit generator, small enough that each episode can add its number to it."""
ActionStd = Annotated[float, Interval(ge=math.exp(-5), le=math.e)]
"""Learned standard deviation of actions in [-1, 1], within the learners' bounds."""

_CONFIG = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def check(settings: Any, prefix: str = "--") -> None:
    """Raise ConfigError, naming the flag, if a value in a (nested) dataclass violates its type or range."""
    for problem in _problems(settings, prefix, flags=True):
        raise ConfigError(problem)
    for field in fields(settings):
        if is_dataclass(value := getattr(settings, field.name)):
            check(value, "--" if field.name == "config" else f"{prefix}{field.name.replace('_', '-')}.")


def validate(settings: Any, prefix: str = "") -> None:
    """Raise ValueError if a value in a dataclass violates its type or range; for use in `__post_init__`."""
    for problem in _problems(settings, prefix):
        raise ValueError(problem)


def find_problem(value: Any, hint: Any) -> tuple[Any, str] | None:
    """Return a value's invalid part and the violated requirement; None if valid. Numbers must be finite."""
    adapter = _adapter(hint)
    try:
        if adapter is not None:
            adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        value = first["input"]
        wanted = {
            "missing": "a longer list", "too_long": "a shorter list",
            "tuple_type": f"a tuple: {tuple(value) if isinstance(value, list) else (value,)}",
            "float_type": f"a number, not {_kind(value)}", "int_type": f"a whole number, not {_kind(value)}",
            "string_type": f"a text in quotes, not {_kind(value)}", "bool_type": f"True or False, not {_kind(value)}",
        }.get(first["type"])  # fmt: skip
        return value, wanted or first["msg"].removeprefix("Input should be ")
    return None


def _kind(value: Any) -> str:
    """Return words for a value's type; the value itself is shown beside them."""
    return "a text in quotes" if isinstance(value, str) else f"of type {type(value).__name__}"


def _problems(settings: Any, prefix: str, flags: bool = False) -> Iterator[str]:
    for name, hint in _hints(settings.__class__).items():
        if found := find_problem(getattr(settings, name), hint):
            value, wanted = found
            number = isinstance(value, int | float) and not isinstance(value, bool)
            shown = f"{value:g}" if number else repr(value)
            yield f"{prefix}{name.replace('_', '-') if flags else name} is {shown}; it must be {wanted}"


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Return pydantic's validator for a type; None for dataclasses, which validate themselves."""
    try:
        return TypeAdapter(hint, config=_CONFIG)
    except PydanticUserError:
        return None
