"""Cyclone type objects from message definitions, at run time.

They are never instantiated: discovery needs their names and shapes; rosbags encodes the data as CDR.
"""

from __future__ import annotations

from typing import Any

from cyclonedds.idl import make_idl_struct
from cyclonedds.idl import types as idl
from rosbags.typesys.store import Typestore

from real.bus.messages import ARRAY, BASE, NAME
from real.bus.names import dds_type

_BASE: dict[str, Any] = {
    "bool": bool, "byte": idl.byte, "string": str, "float32": idl.float32, "float64": idl.float64,
    "int8": idl.int8, "int16": idl.int16, "int32": idl.int32, "int64": idl.int64,
    "uint8": idl.uint8, "uint16": idl.uint16, "uint32": idl.uint32, "uint64": idl.uint64,
}  # fmt: skip


def idl_struct(type_name: str, store: Typestore, made: dict[str, Any]) -> Any:
    """Build the keyless, final struct that ROS peers announce under the same name.

    No annotation means final; `@appendable` would switch the payload to XCDR2, which ROS does not read.
    Member names stay ROS's. ``made`` holds the types built so far, one object for each.
    """
    if type_name not in made:
        fields = {name: _field(desc, store, made) for name, desc in store.fielddefs[type_name][1]}
        name = dds_type(type_name).replace("::", ".")
        made[type_name] = make_idl_struct(name.rsplit(".", 1)[1], name, fields)
    return made[type_name]


def _field(desc: Any, store: Typestore, made: dict[str, Any]) -> Any:
    kind, rest = desc
    if kind == BASE:
        name, bound = rest
        return idl.bounded_str[bound] if name == "string" and bound else _BASE[name]
    if kind == NAME:
        return idl_struct(rest, store, made)
    inner, length = _field(rest[0], store, made), rest[1]
    if kind == ARRAY:
        return idl.array[inner, length]
    return idl.sequence[inner, length] if length else idl.sequence[inner]
