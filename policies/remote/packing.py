"""Serialize messages as msgpack, with openpi's encoding of numpy arrays and scalars.

    array     {b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [2, 3]}
    scalar    {b"__npgeneric__": True, b"data": 0.5, b"dtype": "<f4"}

Arrays hold numbers and booleans only, because object arrays would need pickle.
"""

import math
import re
from typing import Any

import msgpack
import numpy as np

ARRAY, SCALAR = b"__ndarray__", b"__npgeneric__"
_NUMBERS = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
_MOST_AXES = 8


class PackingError(ValueError):
    """Bytes are not a valid message, or a value cannot be serialized."""


def pack(message: Any) -> bytes:
    """Return a message as bytes; PackingError for a value that cannot be serialized."""
    try:
        packed: bytes = msgpack.packb(message, default=_encode)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PackingError(f"it cannot be packed: {error}") from None
    return packed


def unpack(data: bytes) -> Any:
    """Return the message in bytes, with writable arrays; PackingError for invalid bytes."""
    try:
        return msgpack.unpackb(data, object_hook=_decode)
    except PackingError:
        raise
    except Exception as error:  # msgpack has no common base class of errors
        raise PackingError(f"it is no msgpack ({str(error) or type(error).__name__})") from None


def _encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"a {type(value).__name__} is no message")
    if not _NUMBERS.fullmatch(value.dtype.str):
        raise TypeError(f"an array of {value.dtype} holds no numbers")
    if isinstance(value, np.generic):
        return {SCALAR: True, b"data": value.item(), b"dtype": value.dtype.str}
    return {ARRAY: True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decode(entry: dict[Any, Any]) -> Any:
    if ARRAY not in entry and SCALAR not in entry:
        return entry
    name, data = entry.get(b"dtype"), entry.get(b"data")
    if not isinstance(name, str) or not _NUMBERS.fullmatch(name):
        raise PackingError(f"it holds an array of {name!r}, which are no numbers")
    dtype = np.dtype(name)
    if SCALAR in entry:
        return _scalar(dtype, data)
    shape = entry.get(b"shape")
    axes = isinstance(shape, list | tuple) and len(shape) <= _MOST_AXES
    if not axes or not all(type(n) is int and n >= 0 for n in shape):  # type: ignore[union-attr]
        raise PackingError(f"it holds an array of shape {shape!r}")
    size = math.prod(shape) * dtype.itemsize  # type: ignore[arg-type]
    if not isinstance(data, bytes) or len(data) != size:
        got = len(data) if isinstance(data, bytes) else "no"
        raise PackingError(f"it holds an array of {size} bytes, and {got} of them")
    array = np.ndarray(shape, dtype, data)  # type: ignore[arg-type]
    return array.astype(dtype.newbyteorder("="))  # copies


def _scalar(dtype: np.dtype[Any], data: Any) -> Any:
    if not isinstance(data, bool | int | float):
        raise PackingError(f"it holds a number that is {type(data).__name__}")
    try:
        return dtype.newbyteorder("=").type(data)
    except (OverflowError, ValueError) as error:
        raise PackingError(f"it holds a number that is none ({error})") from None
