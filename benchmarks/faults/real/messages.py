"""A robot's publisher whose messages arrive late, twice, never or wrong."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from real.bus import decode, encode
from real.drivers.wire import LOW_STATE, layout

JOINT_STATE = "sensor_msgs/msg/JointState"
LATE, FLOOD = 0.2, 10
"""Delay of delayed messages, s, and copies of each message in a flood: 5,000 per second at 500 Hz."""
FORGED = ("nan", "jump", "clock")
"""Faults that change a message: numbers that are no numbers, a jump by 1 rad, a clock that was set by 5 s."""


class Faulty:
    """A `publish` of bytes that does as `fault` says; "": it publishes."""

    def __init__(
        self, publish: Callable[[bytes], object], forge: Callable[[bytes, str], bytes],
        now: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.publish, self.forge, self.now, self.fault = publish, forge, now, ""
        self.kept: deque[tuple[float, bytes]] = deque()
        self.last = b""

    def __call__(self, raw: bytes) -> None:
        self.kept.append((self.now(), raw))
        if self.fault == "delayed":
            while self.kept and self.kept[0][0] <= self.now() - LATE:
                self.publish(self.kept.popleft()[1])
        elif self.fault == "reordered":  # pairs change places
            while len(self.kept) >= 2:
                (_, first), (_, second) = self.kept.popleft(), self.kept.popleft()
                self.publish(second)
                self.publish(first)
        else:
            self.kept.clear()
            if self.fault == "frozen":
                raw = self.last
            elif self.fault in FORGED:
                raw = self.forge(raw, self.fault)
            for _ in range({"silent": 0, "flooded": FLOOD}.get(self.fault, 1)):
                self.publish(raw)
            self.last = raw


def joints(raw: bytes, fault: str) -> bytes:
    """Return a forged sensor_msgs/JointState."""
    msg: Any = decode(raw, JOINT_STATE)
    if fault == "clock":
        msg.header.stamp.sec += 5
    else:
        msg.position = np.array(msg.position) + 1.0 if fault == "jump" else np.full(len(msg.position), np.nan)
    return encode(msg, JOINT_STATE)


def low_state(raw: bytes, fault: str) -> bytes:
    """Return a forged unitree_go/LowState with a right checksum."""
    wire = layout(LOW_STATE)
    found = wire.open(raw)
    assert found is not None
    record = found.copy()
    if fault == "clock":
        record["tick"] += 5000
    else:
        record["motor_state"]["q"][:12] += {"jump": 1.0, "nan": np.nan}[fault]
    return wire.seal(record)
