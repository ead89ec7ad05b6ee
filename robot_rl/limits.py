"""Numbers that a setting may have, said in its type, and one check of them all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from robot_rl.errors import Misfit


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


def check(settings: Any, prefix: str = "--") -> None:
    """Refuse a dataclass, nested ones included, with a number outside the range of its type; name the flag."""
    hints = get_type_hints(type(settings), include_extras=True)
    for field in fields(settings):
        value = getattr(settings, field.name)
        flag = prefix + field.name.replace("_", "-")
        if is_dataclass(value):
            check(value, "--" if field.name == "config" else f"{flag}.")
            continue
        for one in value if isinstance(value, tuple) else (value,):
            for allowed in _ranges(hints[field.name]):
                if one is not None and one not in allowed:
                    raise Misfit(f"{flag} is {one:g}; it must be {allowed}")


def _ranges(hint: Any) -> Iterator[Range]:
    """Also those inside a tuple's or an optional number's type."""
    if get_origin(hint) is Annotated:
        yield from (m for m in hint.__metadata__ if isinstance(m, Range))
    else:
        for part in get_args(hint):
            yield from _ranges(part)
