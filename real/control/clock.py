"""Absolute deadlines on the monotonic clock, and their lateness."""

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

from real.control.histogram import Histogram

logger = logging.getLogger(__name__)
SPIN = 0.0002
"""Seconds before a deadline to spin instead of sleep: the scheduler may wake that late."""


STALL = 0.025
"""Lateness of a tick beyond which the process is said to have stood still, s: half of what a robot's watchdogs wait."""


class Ticker:
    """Wake every `period` seconds. Deadlines are absolute, so errors never add up; missed ones are skipped, without a
    burst::

        deadline   1    2    3    4    5
        wake       1    2      3.4     5      (4 is counted as missed)
    """

    def __init__(self, period: float):
        self.period = period
        self.next = time.monotonic() + period
        self.timing = Timing(period)

    def restart(self) -> None:
        """Forget the deadlines that have passed meanwhile, after work that was no tick's."""
        self.next = time.monotonic() + self.period

    def wait(self) -> float:
        """Sleep until the next deadline; return the lateness in seconds."""
        pause = self.next - SPIN - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        while time.monotonic() < self.next:
            pass
        now = time.monotonic()
        late = now - self.next
        skipped = int(late / self.period)
        self.timing.add(late, skipped, now)
        self.next += (1 + skipped) * self.period
        return late


@dataclass
class Drift:
    """Drift of a loop against its rate: the least-squares line through its lateness on a grid of its period that begins
    at the first tick. The loop's own deadlines are not used, so a wrong period and accumulated pauses show."""

    ticks: int = 0
    mean_time: float = 0.0
    mean_late: float = 0.0
    variance: float = 0.0
    """Sum of the squared distances of the grid's times from their mean, s^2."""
    covariance: float = 0.0
    """Sum of the products of these distances and those of the lateness, s^2."""
    span: float = 0.0
    """Time from the first tick to the last on the grid, s."""

    def add(self, planned: float, late: float) -> None:
        """Add a tick, planned `planned` s after the first on the grid, that came `late` s late."""
        self.ticks += 1
        off = planned - self.mean_time
        self.mean_time += off / self.ticks
        self.mean_late += (late - self.mean_late) / self.ticks
        self.variance += off * (planned - self.mean_time)
        self.covariance += off * (late - self.mean_late)
        self.span = planned

    def __add__(self, other: Drift) -> Drift:
        """Combine two loops in sequence, each on its own grid."""
        variance, covariance = self.variance + other.variance, self.covariance + other.covariance
        return Drift(self.ticks + other.ticks, 0.0, 0.0, variance, covariance, self.span + other.span)

    @property
    def seconds(self) -> float:
        """Return how much later the loop was at its end than at its start, by that line, s; 0 without a second tick."""
        return self.covariance / self.variance * self.span if self.variance else 0.0


@dataclass
class Timing:
    """Lateness of a periodic loop."""

    period: float
    """s"""
    late: Histogram = field(default_factory=Histogram)
    """Lateness of the ticks, s."""
    missed: int = 0
    """Deadlines that passed entirely while an earlier tick was late."""

    drift: Drift = field(default_factory=Drift)
    _first: float = math.nan

    def add(self, late: float, skipped: int, now: float) -> None:
        """Count a tick that came at `now`, monotonic s, and the deadlines that passed meanwhile."""
        if not self.late:
            self._first = now
        planned = (len(self.late) + self.missed) * self.period
        self.drift.add(planned, now - self._first - planned)
        self.late.add(late)
        self.missed += skipped

    def __add__(self, other: Timing) -> Timing:
        """Combine two timings, this one first."""
        return Timing(self.period, self.late + other.late, self.missed + other.missed, self.drift + other.drift)

    def summary(self) -> dict[str, Any]:
        """Return figures for the report; times in microseconds."""
        edges = [0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
        counts = self.late.between([1e-6 * edge for edge in edges] + [math.inf])
        ticks, over = len(self.late), sum(counts[edges.index(1000) :])
        return {
            "rate": 1 / self.period,
            "ticks": ticks,
            "seconds": (ticks + self.missed) * self.period,
            "late_share": (over + self.missed) / max(1, ticks + self.missed),
            "missed": self.missed,
            "drift_us": 1e6 * self.drift.seconds,
            "lateness_us": {
                "p50": 1e6 * self.late.percentile(50),
                "p99": 1e6 * self.late.percentile(99),
                "p999": 1e6 * self.late.percentile(99.9),
                "max": 1e6 * self.late.max,
            },
            "histogram": {"edges_us": edges, "counts": counts},
        }


def prefer_realtime(priority: int = 40) -> bool:
    """Give the calling thread SCHED_FIFO and fine timer slack if permitted; warn otherwise. Threads and processes that
    it starts have normal priority. Priorities here: joint states 45, commands 40, policy 20: a thread that holds the
    interpreter lock must not be preempted while the command thread waits for it.
    """
    if sys.platform != "linux":
        return False
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, ns
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except (PermissionError, OSError):
        logger.warning("no real-time priority: for steadier timing allow it as `robot-rl doctor` says")
        return False
    return True


def scheduling() -> tuple[Any, ...]:
    """Return the calling thread's scheduling, for `reschedule`; empty if unknown."""
    return (os.sched_getscheduler(0), os.sched_getparam(0)) if sys.platform == "linux" else ()


def reschedule(before: tuple[Any, ...]) -> None:
    """Restore the scheduling from `scheduling`; only root can reset the flag for new threads."""
    if before:
        policy, parameters = before
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)


def prefer_realtime_bus(priority: int = 45) -> None:
    """Give real-time priority to the bus: its reader, which is the calling thread, and DDS's threads that feed it.

    Otherwise, on a busy machine, the reader waits for a receiver without priority, and states are tens of ms late.
    """
    if not prefer_realtime(priority):
        return
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            if (task / "comm").read_text().startswith("recv"):
                policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
                os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))


def yield_to_robot() -> None:
    """Let this process use only otherwise idle processor time."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def bare_loop(rate: float, seconds: float = 2.0) -> Timing:
    """Return the lateness of an idle loop at the command loop's priority: the floor of this machine."""
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
