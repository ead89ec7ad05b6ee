"""Unitree's fixed-size messages as numpy records: views of all motors at once, their checksum, and CDR bytes.

A message is a 0-d record laid out as the C struct that the checksum is defined on; on the bus it is CDR, which pads
less. At 500 Hz in three processes on one computer, objects for each motor would cost more than the control.

    command = layout("unitree_go/msg/LowCmd").empty()
    command["motor_cmd"]["kp"][:12] = 25.0
    publisher.publish(layout("unitree_go/msg/LowCmd").seal(command))
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from real.bus.messages import ARRAY, NAME, store
from real.robots.crc import crc32

LOW_COMMAND, LOW_STATE = "unitree_go/msg/LowCmd", "unitree_go/msg/LowState"
_HEADER = b"\x00\x01\x00\x00"
"""Header of little-endian CDR."""


def _fields(type_name: str) -> Iterator[tuple[str, str, int, bool]]:
    """Yield name, type, count and whether it is a message, of each field."""
    fields: Any = store().fielddefs[type_name][1]
    for name, (kind, rest) in fields:
        (inner, base), count = (rest[0], rest[1]) if kind == ARRAY else ((kind, rest), 1)
        yield name, base if inner == NAME else base[0], count, inner == NAME


def _record(type_name: str) -> np.dtype[Any]:
    """Return the C struct's dtype, with its padding."""
    return np.dtype(
        [
            (name, *((_record(base) if nested else base,) + ((count,) if count > 1 else ())))
            for name, base, count, nested in _fields(type_name)
        ],
        align=True,
    )


class Layout:
    """One message type, whose last field is its checksum."""

    def __init__(self, type_name: str):
        self.dtype = _record(type_name)
        here: list[np.ndarray] = []
        there: list[np.ndarray] = []
        self._end = 0
        self._walk(type_name, self.dtype, 0, here, there)
        self._struct, self._cdr = np.concatenate(here), np.concatenate(there)
        """Place of each byte in the struct and in the CDR body."""
        self._length = self._end + -self._end % 4

    def _walk(
        self, type_name: str, record: np.dtype[Any], start: int, here: list[np.ndarray], there: list[np.ndarray]
    ) -> None:
        offsets: Any = record.fields
        for name, base, count, nested in _fields(type_name):
            at = start + offsets[name][1]
            if nested:
                inner = offsets[name][0].base
                for k in range(count):
                    self._walk(base, inner, at + k * inner.itemsize, here, there)
                continue
            size = np.dtype(base).itemsize
            self._end += -self._end % size  # CDR aligns each number to its own size, and pads nothing else
            here.append(np.arange(at, at + size * count))
            there.append(np.arange(self._end, self._end + size * count))
            self._end += size * count

    def empty(self) -> np.ndarray:
        """Return a message of zeros."""
        return np.zeros((), self.dtype)

    def content(self, message: np.ndarray) -> np.ndarray:
        """Return the bytes of all fields, in order, without padding."""
        content: np.ndarray = np.frombuffer(message.tobytes(), np.uint8)[self._struct]
        return content

    def checksum(self, message: np.ndarray) -> int:
        """Return the checksum of all fields before it."""
        struct = np.zeros(self.dtype.itemsize, np.uint8)  # padding counts as zero; numpy does not clear it in copies
        struct[self._struct] = self.content(message)
        return crc32(struct.tobytes()[:-4])

    def seal(self, message: np.ndarray) -> bytes:
        """Write the checksum into the message and encode it."""
        message["crc"] = self.checksum(message)
        body = np.zeros(self._length, np.uint8)
        body[self._cdr] = self.content(message)
        return _HEADER + body.tobytes()

    def open(self, raw: bytes) -> np.ndarray | None:
        """Decode a message, or None if its length, byte order or checksum is wrong."""
        if len(raw) < 4 + self._end or bytes(raw[:2]) != _HEADER[:2]:
            return None
        body = np.frombuffer(raw, np.uint8, offset=4)
        struct = np.zeros(self.dtype.itemsize, np.uint8)
        struct[self._struct] = body[self._cdr]
        message: np.ndarray = struct.view(self.dtype).reshape(())
        return message if message["crc"] == self.checksum(message) else None


@cache
def layout(type_name: str) -> Layout:
    """Return the layout of a type, built once."""
    return Layout(type_name)
