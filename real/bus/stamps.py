"""Stamps of messages: builtin_interfaces/Time from and to numbers."""

from typing import Any

from real import clock


def stamp(time: int | None = None) -> dict[str, int]:
    """Return a time, ns, as fields of a stamp; None: now, by `clock.ros_time`."""
    sec, nanosec = divmod(clock.ros_time() if time is None else time, 1_000_000_000)
    return {"sec": sec, "nanosec": nanosec}


def seconds(stamp: Any) -> float:
    """Return a message's stamp in s; 0 if the stamp is not set."""
    return float(stamp.sec + 1e-9 * stamp.nanosec)
