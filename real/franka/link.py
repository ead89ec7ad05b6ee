"""Messages between the node and the processes that hold arm and hand, over a local socket that keeps their bounds.

A process's end closes its socket, which the other side notices at once. All times are of the machine's monotonic clock.
"""

from __future__ import annotations

import select
import socket
import struct
from dataclasses import dataclass, fields
from typing import Any

from real.held.report import Report

SIZES = {"q": 7, "dq": 7, "tau": 7, "tau_external": 7, "wrench": 6}
"""Numbers in the fields that are arrays."""


def _layout(kind: type[Any]) -> struct.Struct:
    return struct.Struct("<" + "".join(f"{SIZES.get(field.name, 1)}d" for field in fields(kind)))


@dataclass(frozen=True)
class Goal:
    """Goal of the arm."""

    time: float
    """Arrival, s."""
    q: tuple[float, ...]
    """Joint positions (7,), rad."""


@dataclass(frozen=True)
class Grip:
    """Goal of the hand."""

    width: float
    """Distance between the fingers, m."""
    force: float
    """Grasping force, N."""


@dataclass(frozen=True)
class Recover:
    """Request of the operator to recover from a latched stop."""

    number: float
    """Number of the request, counted from 1."""


@dataclass(frozen=True)
class ArmState:
    """State of the arm, and of the loop that moves it."""

    time: float
    """Arrival of the robot's state, s."""
    q: tuple[float, ...]
    """Joint positions (7,), rad."""
    dq: tuple[float, ...]
    """Joint velocities (7,), rad/s."""
    tau: tuple[float, ...]
    """Joint torques (7,), N m."""
    tau_external: tuple[float, ...]
    """External torques at the joints (7,), N m."""
    wrench: tuple[float, ...]
    """External force, N, and moment, N m, on the tool in the base frame (6,)."""
    success_rate: float
    """Share of the last 100 commands that the robot received in time."""
    cycles: float
    """Cycles of motion since the start."""
    lost: float
    """Cycles of motion that were lost."""
    lost_in_row: float
    """Largest number of cycles lost in a row."""
    stalls: float
    """Number of times that this process stood still for over `real.control.timing.STALL` s."""
    rate: float
    """Rate of the robot's states, Hz; 0 until it is known. The robot sends 1,000 a second."""
    answer: float
    """Longest time from a state to the command, of the last cycles, s."""
    mass: float
    """Mass of hand and load as the robot is told, kg."""


@dataclass(frozen=True)
class HandState:
    """State of the hand."""

    width: float
    """Distance between the fingers, m."""
    max_width: float
    """Largest distance, m, as its homing has measured it."""
    grasped: float
    """1 if the hand holds an object."""
    failed: float
    """Number of motions that the hand has refused or not finished."""
    time: float
    """Arrival of the hand's state, s."""


KINDS: tuple[type[Any], ...] = (Goal, Grip, Recover, ArmState, HandState)
LAYOUTS = {kind: _layout(kind) for kind in KINDS}


class Link:
    """One end of the socket."""

    def __init__(self, end: socket.socket):
        self._end = end
        self.closed = False
        """The other process has ended."""

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any, wait: float = 0.0) -> bool:
        """Send a message, and return whether it was: it is dropped if the other side has not read for a while.

        Args: `wait`: time to wait for that, s. A state need not wait, as the next one replaces it.
        """
        if isinstance(message, Report):
            raw = bytes([len(KINDS), message.latched]) + message.reason.encode()
        else:
            kind = type(message)
            numbers: list[float] = []
            for value in vars(message).values():
                numbers.extend(value if isinstance(value, tuple | list) else (value,))
            raw = bytes([KINDS.index(kind)]) + LAYOUTS[kind].pack(*numbers)
        try:
            if wait:
                select.select([], [self._end], [], wait)
            self._end.send(raw, socket.MSG_DONTWAIT)
            return True
        except BlockingIOError:
            return False
        except (OSError, ValueError):  # the other process has ended, or this link is closed
            self.closed = True
            return False

    def receive(self, wait: bool = False) -> Any:
        """Return the next message; None if there is none, or if the other process has ended. `wait`: for a message."""
        try:
            raw = self._end.recv(4096, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionError:
            raw = b""
        if not raw:
            self.closed = True
            return None
        if raw[0] == len(KINDS):
            return Report(raw[2:].decode(), bool(raw[1]))
        kind = KINDS[raw[0]]
        numbers, values, at = LAYOUTS[kind].unpack(raw[1:]), [], 0
        for field in fields(kind):
            size = SIZES.get(field.name, 0)
            values.append(numbers[at : at + size] if size else numbers[at])
            at += size or 1
        return kind(*values)

    def close(self) -> None:
        self._end.close()
