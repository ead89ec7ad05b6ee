"""Numbers that a setting may have, said in its type, and one check of them all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from robot_rl.util.errors import Misfit


@dataclass(frozen=True)
class Range:
    """What `Annotated[int, Range(1)]` and the like say: from `low` on, or above it if `open`, up to `high`."""

    low: float
    high: float = math.inf
    open: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.open else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        most = "" if math.isinf(self.high) else f" and at most {self.high:g}"
        return f"{'above' if self.open else 'at least'} {self.low:g}{most}"


Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, open=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Seed = Annotated[int, Range(0, 2**62)]
"""Of 64 bits, as generators take it, with room for one more per episode."""
Spread = Annotated[float, Range(math.exp(-5), math.e)]
"""A standard deviation of actions in [-1, 1] that is learned, within what learning keeps it."""
Portion = Annotated[float, Range(0, 1, open=True)]
"""A share that leaves something."""


def check(settings: Any, prefix: str = "--") -> None:
    """Refuse a dataclass, nested ones included, with a value that is not of its type and range; name the flag."""
    for name, value, wanted in _faults(settings):
        raise Misfit(f"{prefix}{name.replace('_', '-')} is {_shown(value)}; it must be {wanted}")
    for field in fields(settings):
        if is_dataclass(value := getattr(settings, field.name)):
            check(value, "--" if field.name == "config" else f"{prefix}{field.name.replace('_', '-')}.")


def require(settings: Any, prefix: str = "") -> None:
    """The same for a dataclass's `__post_init__`, as a ValueError: who reads the file that made it names that."""
    for name, value, wanted in _faults(settings):
        raise ValueError(f"{prefix}{name} is {_shown(value)}; it must be {wanted}")


def fault(value: Any, hint: Any) -> tuple[Any, str] | None:
    """The part of a value that is not what a type asks for, and what it must be; None where all of it is.

    Numbers are finite; of types that are not numbers, texts, choices or tuples of these nothing is asked.
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        ranges = (m for m in hint.__metadata__ if isinstance(m, Range) and isinstance(value, int | float))
        return next(((value, str(r)) for r in ranges if value not in r), None) or fault(value, parts[0])
    if kind in (Union, UnionType):
        faults = [fault(value, part) for part in parts]
        return (
            None if None in faults else next(f for f, part in zip(faults, parts, strict=True) if part is not NoneType)
        )
    if kind is tuple and isinstance(value, tuple):
        each = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        if len(value) != len(each):
            return value, f"{len(each)} values"
        return next((f for f in map(fault, value, each) if f), None)
    if kind is Literal:
        return None if value in parts else (value, f"one of {', '.join(map(repr, parts))}")
    return None if _is(value, kind or hint) else (value, _CALLED[kind or hint])


_CALLED = {
    int: "a whole number", float: "a finite number", str: "a text", bool: "true or false", tuple: "a list",
    NoneType: "nothing",
}  # fmt: skip


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return kind not in _CALLED or isinstance(value, kind)


def _faults(settings: Any) -> Iterator[tuple[str, Any, str]]:
    """Name of the setting, what is wrong in it, and what it must be."""
    for name, hint in _hints(settings.__class__).items():
        if found := fault(getattr(settings, name), hint):
            yield name, *found


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else repr(value)
