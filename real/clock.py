"""Absolute deadlines on the monotonic clock, and what came of them."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real.histogram import Histogram

logger = logging.getLogger(__name__)
SPIN = 0.0002
"""Seconds before a deadline that are spun instead of slept: the scheduler wakes that late."""


class Ticker:
    """Wakes every `period` seconds. Deadlines are absolute, so errors never add up; a missed one is skipped, not
    made up for by a burst::

        deadline   1    2    3    4    5
        wake       1    2      3.4     5      (4 is counted as missed)
    """

    def __init__(self, period: float):
        self.period = period
        self.next = time.monotonic() + period
        self.timing = Timing(period)

    def wait(self) -> float:
        """Sleep until the next deadline; return the lateness in seconds."""
        pause = self.next - SPIN - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        while time.monotonic() < self.next:
            pass
        late = time.monotonic() - self.next
        skipped = int(late / self.period)
        self.timing.add(late, skipped)
        self.next += (1 + skipped) * self.period
        return late


@dataclass
class Timing:
    """Lateness of a periodic loop."""

    period: float
    """s"""
    late: Histogram = field(default_factory=Histogram)
    """Lateness of the ticks, s."""
    missed: int = 0
    """Deadlines that passed entirely while an earlier tick was late."""

    def add(self, late: float, skipped: int) -> None:
        self.late.add(late)
        self.missed += skipped

    def summary(self) -> dict[str, Any]:
        """Figures for the report; times in microseconds."""
        edges = [0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
        counts = self.late.between([1e-6 * edge for edge in edges] + [math.inf])
        ticks, over = len(self.late), sum(counts[edges.index(1000) :])
        return {
            "rate": 1 / self.period,
            "ticks": ticks,
            "seconds": (ticks + self.missed) * self.period,
            "late_share": (over + self.missed) / max(1, ticks + self.missed),
            "missed": self.missed,
            "drift_us": 1e6 * self.late.last,
            "lateness_us": {
                "p50": 1e6 * self.late.percentile(50),
                "p99": 1e6 * self.late.percentile(99),
                "p999": 1e6 * self.late.percentile(99.9),
                "max": 1e6 * self.late.max,
            },
            "histogram": {"edges_us": edges, "counts": counts},
        }


def prefer_realtime(priority: int = 40) -> bool:
    """Give the calling thread SCHED_FIFO and fine timer slack where permitted; say so where not.

    Threads and processes that it starts are ordinary ones. Priorities here: joint states 45, commands 40, policy 20:
    a thread that holds the interpreter must not wait for a processor while the command thread waits for it.
    """
    if sys.platform != "linux":
        return False
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, ns
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except (PermissionError, OSError):
        logger.warning("no real-time priority: allow it with `ulimit -r 40` or CAP_SYS_NICE for steadier timing")
        return False
    return True


def prefer_realtime_bus(priority: int = 45) -> None:
    """The same for the bus: its reader, which has to be the calling thread, and DDS's own threads that feed it.

    On a busy machine a reader with priority waits for a receiver without: states then come tens of ms late.
    """
    if not prefer_realtime(priority):
        return
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            if (task / "comm").read_text().startswith("recv"):
                policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
                os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))


def yield_to_robot() -> None:
    """Let this process use only the processor time that nobody else wants."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def bare_loop(rate: float, seconds: float) -> Timing:
    """Lateness of a loop that does nothing, at the command loop's priority: the floor of this machine."""
    found: list[Timing] = []

    def loop() -> None:
        prefer_realtime()
        ticker = Ticker(1 / rate)
        for _ in range(round(rate * seconds)):
            ticker.wait()
        found.append(ticker.timing)

    thread = threading.Thread(target=loop, name="bare-loop", daemon=True)  # Ctrl-C does not wait for it
    thread.start()
    thread.join()
    return found[0]
