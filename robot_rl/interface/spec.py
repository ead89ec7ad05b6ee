"""Specs of flat vectors: names, units, ranges, and conversion between [-1, 1] and physical units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is imported late: a robot's guard reads specs without it
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Field:
    """Named quantity in a flat vector."""

    name: str
    """Name of the quantity, and prefix of its component names; empty: no prefix."""
    dims: tuple[str, ...]
    """Name of each component, for example ("x", "y", "z")."""
    unit: str
    low: tuple[float, ...]
    """Smallest physical value of each component."""
    high: tuple[float, ...]
    frame: str = ""
    """Coordinate frame of the quantity; empty: the quantity has no frame."""

    def __post_init__(self) -> None:
        if not len(self.dims) == len(self.low) == len(self.high):
            raise ValueError(f"field {self.name!r}: dims, low and high differ in length")
        for dim, low, high in zip(self.dims, self.low, self.high, strict=True):
            if not low < high:
                raise ValueError(f"field {self.name!r}, {dim}: low {low} is not below high {high}")


def box(name: str, dims: str, unit: str, low: float, high: float, frame: str = "") -> Field:
    """Return a field whose components share one range; `dims` has the component names, separated by spaces."""
    names = tuple(dims.split())
    return Field(name, names, unit, (low,) * len(names), (high,) * len(names), frame)


def numbered(name: str, low: Sequence[float], high: Sequence[float]) -> VectorSpec:
    """Return the spec of a vector without units whose components are numbered; `low` and `high` are their limits."""
    return VectorSpec((Field(name, tuple(map(str, range(len(low)))), "", tuple(low), tuple(high)),))


@dataclass(frozen=True)
class VectorSpec:
    """Spec of a flat vector (..., size): its fields, in order."""

    fields: tuple[Field, ...]

    @cached_property
    def names(self) -> list[str]:
        """Return the component names as in datasets, `<field>.<dim>`."""
        return [f"{f.name}.{d}" if f.name else d for f in self.fields for d in f.dims]

    @property
    def size(self) -> int:
        return len(self.names)

    @cached_property
    def low(self) -> Tensor:
        import torch

        return torch.tensor([v for f in self.fields for v in f.low], device="cpu")

    @cached_property
    def high(self) -> Tensor:
        import torch

        return torch.tensor([v for f in self.fields for v in f.high], device="cpu")

    @cached_property
    def _bounds(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return `low` and `high` (size,) on a device; the copies are cached."""
        if device not in self._bounds:
            self._bounds[device] = self.low.to(device), self.high.to(device)
        return self._bounds[device]

    def slice(self, name: str) -> slice:
        """Return the slice of field `name` in the flat vector."""
        start = 0
        for f in self.fields:
            if f.name == name:
                return slice(start, start + len(f.dims))
            start += len(f.dims)
        raise KeyError(f"no field {name!r}; there are {[f.name for f in self.fields]}")

    def to_physical(self, unit: Tensor) -> Tensor:
        """Map values (..., size) in [-1, 1] to physical units between `low` and `high`; values outside are clipped."""
        low, high = self.bounds(unit.device)
        return low + (unit.clamp(-1, 1) + 1) * 0.5 * (high - low)

    def to_unit(self, physical: Tensor) -> Tensor:
        """Map values (..., size) in physical units between `low` and `high` to [-1, 1]; values outside are clipped."""
        low, high = self.bounds(physical.device)
        return (2 * (physical - low) / (high - low) - 1).clamp(-1, 1)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the fields as JSON, with null for infinite limits."""
        finite = [{k: [v if math.isfinite(v) else None for v in getattr(f, k)] for k in _LIMITS} for f in self.fields]
        return [asdict(f) | limits for f, limits in zip(self.fields, finite, strict=True)]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> VectorSpec:
        limits = [{k: tuple(none if v is None else v for v in d[k]) for k, none in _LIMITS.items()} for d in data]
        both = zip(data, limits, strict=True)
        return cls(tuple(Field(d["name"], tuple(d["dims"]), d["unit"], **ends, frame=d["frame"]) for d, ends in both))


_LIMITS = {"low": -math.inf, "high": math.inf}


NOTHING = VectorSpec(())
"""The spec of an absent vector."""
