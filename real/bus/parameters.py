"""Declared parameters of a node: types, ranges, checks before a change, and their ROS messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from real.bus.messages import make
from real.bus.names import BusError

OnSet = Callable[[Any], None] | None
"""Called with a new value before it takes effect; an exception refuses the value and gives the reason."""
_TYPES = ("not set", "bool", "integer", "double", "string", "byte array", "bool array", "integer array",
          "double array", "string array")  # fmt: skip
_FIELDS = ("", "bool_value", "integer_value", "double_value", "string_value", "byte_array_value", "bool_array_value",
           "integer_array_value", "double_array_value", "string_array_value")  # fmt: skip
_SCALARS = (None, bool, int, float, str, bytes)
_INTEGER, _DOUBLE, _ARRAY = 2, 3, 5  # numbers in rcl_interfaces/msg/ParameterType; arrays are 5 above their elements


@dataclass(frozen=True)
class Declaration:
    """Declaration of a parameter."""

    name: str
    type: int
    """Number in `rcl_interfaces/msg/ParameterType`."""
    description: str = ""
    low: float | None = None
    high: float | None = None
    """Bounds of a number, or of each number of an array; None: unbounded."""
    read_only: bool = False
    on_set: OnSet = None

    def problem(self, value: Any) -> str:
        """Return why a value cannot be this parameter's; empty if it can."""
        kind = type_of(value, self.type)
        if kind != self.type:
            return f"{self.name} is a {_TYPES[self.type]}, {value!r} is a {_TYPES[kind]}"
        if self.low is None and self.high is None:
            return ""
        low, high = self.bounds()
        if all(low <= number <= high for number in (value if isinstance(value, list) else [value])):  # not for NaN
            return ""
        return f"{self.name} must be in [{low:g}, {high:g}], not {value!r}"

    def bounds(self) -> tuple[float, float]:
        """Return the bounds as numbers that fit the type."""
        widest = (-(2**63), 2**63 - 1) if self.type == _INTEGER else (-float("inf"), float("inf"))
        return (widest[0] if self.low is None else self.low, widest[1] if self.high is None else self.high)

    def descriptor(self) -> Any:
        """Return the `rcl_interfaces/msg/ParameterDescriptor`."""
        limits: dict[str, Any] = {}
        if (self.low, self.high) != (None, None):
            low, high = self.bounds()
            if self.type in (_INTEGER, _DOUBLE):
                key = "integer_range" if self.type == _INTEGER else "floating_point_range"
                limits = {key: [{"from_value": low, "to_value": high}]}
            else:
                limits = {"additional_constraints": f"each number in [{low:g}, {high:g}]"}
        return make(
            "rcl_interfaces/msg/ParameterDescriptor", name=self.name, type=self.type, description=self.description,
            read_only=self.read_only, **limits,
        )  # fmt: skip


class Parameters:
    """Declared parameters of a node. ``values``: the node's parameters by name, which `set` changes."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.declared: dict[str, Declaration] = {}
        self._lock = threading.RLock()  # one change at a time

    def declare(self, declaration: Declaration, default: Any) -> Any:
        """Add a declaration and return the value: that of a launch argument if there is one, else the default."""
        name = declaration.name
        if name in self.declared:
            raise BusError(f"parameter {name} is declared already: declare it once, and read node.parameters[{name!r}]")
        value = default if self.values.get(name) is None else self.values[name]
        if declaration.type == _DOUBLE and type(value) is int:  # `gain:=1` in a launch file
            value = float(value)
        elif declaration.type == _DOUBLE + _ARRAY and isinstance(value, list):
            value = [float(v) if type(v) is int else v for v in value]
        if problem := declaration.problem(value):
            raise BusError(f"parameter {problem}: correct the launch argument, the parameter file or the default")
        with self._lock:
            self.declared[name], self.values[name] = declaration, value
        return value

    def set(self, pairs: Sequence[tuple[str, Any]]) -> str:
        """Set parameters, all or none; return the reason if they are refused, else an empty text."""
        with self._lock:
            for name, value in pairs:
                declared = self.declared.get(name)
                if declared is None:
                    return f"{name} cannot be set: this node declares {', '.join(sorted(self.declared)) or 'nothing'}"
                if declared.read_only:
                    return f"{name} is read-only: set it before the start, in a launch argument or parameter file"
                if problem := declared.problem(value):
                    return problem
            told: list[tuple[OnSet, Any]] = []
            for name, value in pairs:
                hook = self.declared[name].on_set
                try:
                    if hook is not None:
                        hook(value)
                except Exception as error:
                    for earlier, old in reversed(told):
                        if earlier is not None:
                            earlier(old)
                    return f"{name}: {error}"
                told.append((hook, self.values[name]))
            self.values.update(pairs)
            return ""


def type_of(value: Any, empty: int = 0) -> int:
    """Return a value's number in `rcl_interfaces/msg/ParameterType`; `empty` for an empty list, 0 if ROS has none."""
    if isinstance(value, list):
        kinds = {type_of(item) for item in value}
        if not kinds:
            return empty if empty > _ARRAY else 0
        return kinds.pop() + _ARRAY if len(kinds) == 1 and 0 < min(kinds) < _ARRAY else 0
    return _SCALARS.index(type(value)) if type(value) in _SCALARS[1:] else 0


def to_value(value: Any, kind: int) -> Any:
    """Return the `rcl_interfaces/msg/ParameterValue` of a value of type number `kind`."""
    return make("rcl_interfaces/msg/ParameterValue", type=kind, **({_FIELDS[kind]: value} if kind else {}))


def from_value(message: Any) -> Any:
    """Return the Python value of a `rcl_interfaces/msg/ParameterValue`; None if it is not set."""
    if not 0 < message.type < len(_FIELDS):
        return None
    value = getattr(message, _FIELDS[message.type])
    if message.type == _ARRAY:
        return bytes(value)
    return value if message.type < _ARRAY else list(value) if isinstance(value, list) else value.tolist()
