"""Observation specs: shapes, dtypes, units and names of a dict of batched arrays.

Keys follow LeRobot: `observation.state`, `observation.environment_state` (privileged), `observation.images.<camera>`,
`observation.language` (an instruction as bytes, see `robot_rl.interface.language`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from robot_rl.interface.language import LONGEST
from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import ConfigError, nearest

if TYPE_CHECKING:  # a robot's PC reads specs without gymnasium
    import gymnasium as gym

STATE, PRIVILEGED, IMAGES = "observation.state", "observation.environment_state", "observation.images."
LANGUAGE = "observation.language"
Kind = Literal["state", "picture", "text", "privileged"]
Dtype = Literal["float32", "uint8"]


@dataclass(frozen=True)
class ObservationField:
    """Spec of one entry of an observation, without the batch axis."""

    shape: tuple[int, ...]
    """(D,) for vectors; (height, width, 3) for pictures, channels last as in LeRobot's datasets; (bytes,) for text."""
    dtype: Dtype = "float32"
    kind: Kind = "state"
    unit: str = ""
    names: tuple[str, ...] = ()
    """Names of a vector's components, or of a picture's axes."""
    low: tuple[float, ...] = ()
    """Nominal lower limit of each component; () if unknown. Sensor noise and a robot's falls may exceed the limit."""
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or self.dtype not in get_args(Dtype):
            raise ValueError(f"no observation has kind {self.kind!r} and dtype {self.dtype!r}")
        if (self.kind in ("picture", "text")) != (self.dtype == "uint8"):
            raise ValueError(f"an observation of kind {self.kind!r} cannot have dtype {self.dtype!r}")
        if self.kind == "picture" and (len(self.shape) != 3 or self.shape[2] != 3):
            raise ValueError(f"a picture has shape (height, width, 3), not {self.shape}")
        if any(size < 0 for size in self.shape) or (self.kind == "text" and len(self.shape) != 1):
            raise ValueError(f"an observation of kind {self.kind!r} cannot have shape {self.shape}")
        if len(self.low) != len(self.high) or (self.low and len(self.low) != math.prod(self.shape)):
            raise ValueError(f"low has {len(self.low)} and high {len(self.high)} numbers for shape {self.shape}")

    def fault(self, value: Any, n: int | None, device: torch.device | None) -> str:
        """Describe why a value is not a batch of n such entries on `device`; "" if it is. `n` or `device` None: any."""
        if not isinstance(value, torch.Tensor):
            return f"is {type(value).__name__}, not a tensor"
        if value.dim() == 0 or tuple(value.shape[1:]) != self.shape or n not in (None, len(value)):
            return f"has shape {tuple(value.shape)}, not {('n' if n is None else n, *self.shape)}".replace("'", "")
        if value.dtype is not getattr(torch, self.dtype):
            return f"is {str(value.dtype).removeprefix('torch.')}, not {self.dtype}"
        if device is not None and value.device != device:
            return f"is on {value.device}, not on {device}"
        return ""

    def space(self, n: int | None) -> gym.Space[Any]:
        """Return the Gymnasium space of this entry for n environments; None: one environment, without batch axis."""
        import gymnasium as gym
        import numpy as np

        shape = self.shape if n is None else (n, *self.shape)
        if self.dtype == "uint8":
            return gym.spaces.Box(0, 255, shape, np.uint8)
        return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


def picture_field(height: int, width: int) -> ObservationField:
    """Return the spec of an RGB picture of `height` x `width` pixels."""
    return ObservationField((height, width, 3), "uint8", "picture", "1", ("height", "width", "channels"))


LANGUAGE_FIELD = ObservationField((LONGEST,), "uint8", "text")


@dataclass(frozen=True)
class ObservationSpec(Mapping[str, ObservationField]):
    """Spec of an observation: the ordered fields of its entries by key."""

    fields: tuple[tuple[str, ObservationField], ...]

    def __post_init__(self) -> None:
        keys = [key for key, _ in self.fields]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(f"observation key {twice[0]!r} is given twice")

    @classmethod
    def of(cls, **fields: ObservationField) -> ObservationSpec:
        """Build a spec from one keyword argument per field (`**{key: field}`)."""
        return cls(tuple(fields.items()))

    @classmethod
    def from_vector(cls, vector: VectorSpec, key: str = STATE, kind: Kind = "state") -> ObservationSpec:
        """Build the spec of an observation with a flat vector as its only entry."""
        units = {field.unit for field in vector.fields}
        low, high = (tuple(v for f in vector.fields for v in getattr(f, end)) for end in ("low", "high"))
        unit = units.pop() if len(units) == 1 else "mixed"
        return cls(((key, ObservationField((vector.size,), "float32", kind, unit, tuple(vector.names), low, high)),))

    def __getitem__(self, key: str) -> ObservationField:
        for name, field in self.fields:
            if name == key:
                return field
        raise KeyError(f"no observation {key!r}; {nearest(key, list(self))}")

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __or__(self, other: Mapping[str, ObservationField]) -> ObservationSpec:
        """Return a spec with the fields of both specs; for a key in both, the field of `other`."""
        return ObservationSpec(tuple((dict(self) | dict(other)).items()))

    @property
    def pictures(self) -> dict[str, tuple[int, ...]]:
        """Return the shape (height, width, 3) of each picture by key."""
        return {key: field.shape for key, field in self.fields if field.kind == "picture"}

    def only(self, keys: Iterable[str]) -> ObservationSpec:
        """Return the spec of the given keys, in this spec's order."""
        kept = set(keys)
        return ObservationSpec(tuple((key, field) for key, field in self.fields if key in kept))

    def check(self, observation: Mapping[str, Any], device: torch.device | None = None) -> None:
        """Raise ConfigError if a key is missing or unknown, or an entry has a wrong shape, dtype or device. All entries
        must have the same number of environments and be on `device`. `device` None: all on the first entry's device."""
        if missing := [key for key in self if key not in observation]:
            raise ConfigError(
                f"the observation lacks {missing[0]!r}; it has {', '.join(sorted(observation)) or 'nothing'}"
            )
        if unknown := [key for key in observation if key not in self]:
            raise ConfigError(f"the observation has {unknown[0]!r}, which is not in its spec: {', '.join(self)}")
        n = None
        for key, field in self.fields:
            value = observation[key]
            if wrong := field.fault(value, n, device):
                raise ConfigError(f"observation {key!r} {wrong}")
            n = len(value)
            device = value.device if isinstance(value, torch.Tensor) else device

    def zeros(self, n: int, device: str | torch.device = "cpu") -> dict[str, Any]:
        """Return an observation of n environments with zeros and empty instructions."""
        return {
            key: torch.zeros((n, *field.shape), dtype=getattr(torch, field.dtype), device=device)
            for key, field in self.fields
        }

    def gymnasium_space(self, n: int | None = None) -> gym.spaces.Dict:
        """Return the Gymnasium space of observations of n environments, with unbounded vectors; None: one environment,
        without batch axis."""
        import gymnasium as gym

        return gym.spaces.Dict({key: field.space(n) for key, field in self.fields})

    def to_json(self) -> dict[str, Any]:
        return {key: asdict(field) for key, field in self.fields}

    @classmethod
    def from_json(cls, data: Mapping[str, Mapping[str, Any]]) -> ObservationSpec:
        """Restore the result of `to_json`; ConfigError names the key of an invalid value."""
        fields = []
        for key, entry in data.items():
            try:
                values: dict[str, Any] = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in entry.items()}
                fields.append((key, ObservationField(**values)))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"observation {key!r}: {error}") from None
        return cls(tuple(fields))
