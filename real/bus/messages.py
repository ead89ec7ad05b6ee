"""Message types built from `.msg` definitions at run time, without generated code or ROS, and their CDR encoding."""

import difflib
import os
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from rosbags.serde import SerdeError
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from real.bus.definitions import DEFINITIONS
from real.bus.interfaces import ACTIONS, SERVICES, parse
from real.bus.names import BusError

BASE, NAME, ARRAY, SEQUENCE = 1, 2, 3, 4  # rosbags' node types
DTYPES = {
    "bool": "bool", "byte": "int8", "uint8": "uint8", "int8": "int8", "uint16": "uint16", "int16": "int16",
    "uint32": "uint32", "int32": "int32", "uint64": "uint64", "int64": "int64",
    "float32": "float32", "float64": "float64",
}  # fmt: skip
# ROS's default quaternion has w = 1: zeros are not a rotation. All other defaults are 0.
_DEFAULTS = {("geometry_msgs/msg/Quaternion", "w"): 1.0}


def gid_size() -> int:
    """Return the gid's size in `ros_discovery_info`, bytes: 24 up to Humble, 16 since Iron."""
    return 24 if os.environ.get("ROS_DISTRO") in {"foxy", "galactic", "humble"} else 16


def load_store(gid_bytes: int) -> Typestore:
    """Build the typestore: rosbags' Jazzy types, those that it lacks, and a type Gid of `gid_bytes` bytes."""
    store = get_typestore(Stores.ROS2_JAZZY)
    types: dict[str, Any] = {}
    for type_name, text in (DEFINITIONS | SERVICES | ACTIONS).items():
        types |= parse(type_name, text)
    store.register(types)
    # ROS hashes `char` as uint8, rosbags does not.
    for type_name, (constants, fields) in store.fielddefs.items():
        store.fielddefs[type_name] = (constants, [(name, _char_is_uint8(d)) for name, d in fields])
    gid: Any = (ARRAY, ((BASE, ("uint8", 0)), gid_bytes))
    store.fielddefs["rmw_dds_common/msg/Gid"] = ([], [("data", gid)])
    return store


def _char_is_uint8(desc: Any) -> Any:
    kind, rest = desc
    if kind == BASE:
        return (kind, ("uint8", 0)) if rest[0] == "char" else desc
    return desc if kind == NAME else (kind, (_char_is_uint8(rest[0]), rest[1]))


@cache
def store() -> Typestore:
    """Return the process's typestore; the first call builds it, which takes 0.1 s."""
    return load_store(gid_size())


def register(type_name: str, definition: str) -> None:
    """Add a message, service or action type from its `.msg`, `.srv` or `.action` text."""
    store().register(parse(type_name, definition))


def message(type_name: str) -> type:
    """Return the class of the type ``package/msg/Name``. The class's constructor requires all fields, unlike `make`."""
    known = store().types
    if type_name not in known:
        short = {name.rsplit("/", 1)[1].lower(): name for name in known}
        near = difflib.get_close_matches(type_name, known, 3, 0.7)
        near += [short[s] for s in difflib.get_close_matches(type_name.rsplit("/", 1)[-1].lower(), short, 2, 0.7)]
        hint = f"Did you mean {', '.join(dict.fromkeys(near))}?" if near else "Names look like std_msgs/msg/Bool."
        raise BusError(f"unknown message type {type_name!r}. {hint} Add others with real.bus.register(name, text).")
    return known[type_name]


def make(type_name: str, **fields: Any) -> Any:
    """Build a message; omitted fields are zero or empty.

    Number sequences become numpy arrays of the field's dtype, dicts become nested messages::

        make("geometry_msgs/msg/PoseStamped", header={"frame_id": "base"}, pose={"position": {"z": 0.3}})
    """
    cls, builders = message(type_name), _builders(type_name)
    for name in fields.keys() - builders.keys():
        near = difflib.get_close_matches(name, builders, 1, 0.0) or ["none"]
        raise BusError(f"{type_name} has no field {name!r}; nearest: {near[0]} (of {', '.join(builders)})")
    return cls(**{name: build(fields.get(name)) for name, build in builders.items()})


Build = Callable[[Any], Any]


@cache
def _builders(type_name: str) -> dict[str, Build]:
    """Return for each field a function that returns its value from what `make` gets for it; None: nothing."""
    fields = store().fielddefs[type_name][1]
    return {name: _builder(f"{type_name}.{name}", desc, _DEFAULTS.get((type_name, name), 0)) for name, desc in fields}


def _builder(field: str, desc: Any, default: float) -> Build:
    kind, rest = desc
    if kind == BASE:
        cast: Any = {"bool": bool, "float32": float, "float64": float, "string": str}.get(rest[0], int)
        nothing = cast(default) if cast is not str else ""
        return lambda value: nothing if value is None else cast(value)
    if kind == NAME:
        return lambda value: make(rest, **(value or {})) if value is None or isinstance(value, dict) else value
    (inner_kind, inner), length = rest
    count = length if kind == ARRAY else 0
    if inner_kind == BASE and inner[0] != "string":
        dtype = np.dtype(DTYPES[inner[0]])

        def array(value: Any) -> np.ndarray:
            if value is None:
                return np.zeros(count, dtype)
            value = np.frombuffer(value, np.uint8) if isinstance(value, (bytes, bytearray, memoryview)) else value
            values: np.ndarray = np.asarray(value, dtype).ravel()
            _check_length(field, kind, length, len(values))
            return values

        return array
    build = _builder(field, (inner_kind, inner), default)

    def items(value: Any) -> list[Any]:
        values = [None] * count if value is None else list(value)
        _check_length(field, kind, length, len(values))
        return [build(item) for item in values]

    return items


def _check_length(field: str, kind: int, length: int, got: int) -> None:
    if (kind == ARRAY and got != length) or (kind == SEQUENCE and length and got > length):
        raise BusError(f"{field} holds {'exactly' if kind == ARRAY else 'at most'} {length} values, got {got}")


def encode(msg: Any, type_name: str) -> bytes | memoryview:
    """Serialize a message to CDR with its 4-byte header, padded to a multiple of 4 bytes for Cyclone. Raises BusError
    if the message is not a `type_name`, for arrays of a wrong dtype or shape, and for values out of range."""
    if (actual := getattr(msg, "__msgtype__", type(msg).__name__)) != type_name:
        raise BusError(f"cannot publish {actual} on a topic of {type_name}")
    _check_arrays(msg, type_name)
    try:
        raw = store().serialize_cdr(msg, type_name, little_endian=True)
    except (SerdeError, struct.error, AttributeError, TypeError, ValueError) as error:
        raise BusError(f"{type_name} cannot be encoded: {error}. Build it with real.bus.make().") from error
    rest = -len(raw) % 4
    return raw if rest == 0 else bytes(raw) + bytes(rest)


def decode(raw: bytes, type_name: str) -> Any:
    """Deserialize a message from CDR; its arrays are read-only views of ``raw``. BusError for malformed bytes."""
    try:
        return store().deserialize_cdr(raw, type_name)
    except (SerdeError, IndexError) as error:
        raise BusError(f"{len(raw)} bytes received are no {type_name}: {error}. Do both sides agree on it?") from error


@cache
def _arrays(type_name: str) -> tuple[tuple[str, Any, str], ...]:
    """Return a type's numeric array fields as (field, dtype, ""), and fields whose message type holds numeric arrays as
    (field, None, type)."""
    arrays: list[tuple[str, Any, str]] = []
    fields: Any = store().fielddefs[type_name][1]
    for name, (kind, rest) in fields:
        inner_kind, inner = rest[0] if kind in (ARRAY, SEQUENCE) else (kind, rest)
        if inner_kind == NAME:
            if _arrays(inner):
                arrays.append((name, None, inner))
        elif kind in (ARRAY, SEQUENCE) and inner[0] != "string":
            arrays.append((name, np.dtype(DTYPES[inner[0]]), ""))  # comparison by name takes 1 us
    return tuple(arrays)


def _check_arrays(msg: Any, type_name: str) -> None:
    # rosbags writes an array's bytes unchecked: int64 in a float64 field would silently arrive as 1e-323.
    for name, dtype, nested in _arrays(type_name):
        value = getattr(msg, name)
        if dtype is None:
            for item in value if isinstance(value, list) else [value]:
                _check_arrays(item, nested)
        elif not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
            got = getattr(value, "dtype", type(value).__name__)
            raise BusError(
                f"{type_name}.{name} is {got}, must be a flat numpy array of {dtype}: use"
                f" np.asarray(x, np.{dtype}), or build the message with real.bus.make()."
            )


@cache
def type_hash(type_name: str) -> str:
    """Return a type's RIHS01 hash, which ROS 2 puts in the USER_DATA of endpoints since Iron."""
    return store().hash_rihs01(type_name)
