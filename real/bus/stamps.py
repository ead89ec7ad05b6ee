"""Stamps of messages: builtin_interfaces/Time from and to numbers, and the delay that they tell."""

import math
from typing import Any

from real import clock


def stamp(time: int | None = None) -> dict[str, int]:
    """Return a time, ns, as fields of a stamp; None: now, by `clock.ros_time`."""
    sec, nanosec = divmod(clock.ros_time() if time is None else time, 1_000_000_000)
    return {"sec": sec, "nanosec": nanosec}


def stamped() -> dict[str, int]:
    """Return now as numbers of a message with a header, for `Layout.write`."""
    return {f"header.stamp.{name}": number for name, number in stamp().items()}


def seconds(stamp: Any) -> float:
    """Return a message's stamp in s; 0 if the stamp is not set."""
    return float(stamp.sec + 1e-9 * stamp.nanosec)


def taken(stamp: Any, received: float) -> float:
    """Return when a message that arrived at `received`, s, was stamped, s of ROS time; when it arrived, if it has no
    stamp or its publisher's clock is another one."""
    arrival = 1e-9 * clock.ros_time() - (clock.now() - received)
    at = seconds(stamp)
    return at if 0 <= arrival - at < SET else arrival


WINDOW = 5.0
"""Time after which `Delay` forgets the least delayed message, s; at most twice that."""
SET = 1.0
"""Smallest step by which a clock counts as set, s."""


class Delay:
    """Delay of messages by their stamps, relative to the least delayed one: so their publisher's clock may differ from
    ours. A step of a clock by more than `SET` starts anew; after a smaller one, messages count as delayed for up to
    10 s."""

    def __init__(self) -> None:
        self._last = math.nan
        """Difference between arrival and stamp of the last message, s."""
        self._offset = self._before = math.inf
        """Least difference between arrival and stamp in this window and in the one before, s."""
        self._began = -math.inf

    def __call__(self, stamp: float, received: float) -> float:
        """Return the delay, s, of a message with a stamp, s, that arrived at `received`, s; 0 without a stamp."""
        if stamp <= 0:
            return 0.0
        offset = received - stamp
        if clock.in_lockstep():  # the stamp is of the same clock: a negative offset says that ours lags
            offset = max(0.0, offset)
        if abs(offset - self._last) > SET:
            self._offset = self._before = math.inf
        elif received - self._began > WINDOW:
            self._before, self._offset, self._began = self._offset, math.inf, received
        self._last = offset
        self._offset = min(self._offset, offset)
        return offset - min(self._offset, self._before)
