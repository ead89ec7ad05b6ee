"""Absolute deadlines on the monotonic clock, lateness statistics and real-time priority."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from real import clock
from real.control.seconds import Second
from real.topics import ERROR, WARN

logger = logging.getLogger(__name__)
STALL = 0.025
"""Lateness of a tick above which the process counts as stalled, s: half the time-out of the robot's watchdogs."""
SMALLEST = 1e-8
"""Duration up to which a histogram counts 0, s."""
WIDTH = math.log(1.01)
"""Width of a histogram bin on the logarithmic axis: percentiles are within 0.5 %."""
BINS = 2800
"""Number of histogram bins; the last one ends at 3 hours."""
_CENTRES = np.concatenate([[0.0], SMALLEST * np.exp(WIDTH * (np.arange(1, BINS) - 0.5))])


class Histogram:
    """Histogram of durations with bins of constant ratio. It gives percentiles in constant memory; number and maximum
    are exact."""

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.max, self._n = 0.0, 0
        self.newest = math.nan
        """Duration that was counted last, s."""

    def __len__(self) -> int:
        return self._n

    def add(self, seconds: float) -> None:
        """Count one duration, s."""
        self._n, self.newest = self._n + 1, seconds
        self.max = max(self.max, seconds)
        k = math.ceil(math.log(seconds / SMALLEST) / WIDTH) if seconds > SMALLEST else 0
        self.counts[min(k, BINS - 1)] += 1

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of the durations in both histograms."""
        both = Histogram()
        both.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        both.max, both._n = max(self.max, other.max), self._n + other._n
        return both

    def __sub__(self, earlier: Histogram) -> Histogram:
        """Return the histogram of the durations since `earlier`, a copy of this one; the maximum is of all."""
        since = Histogram()
        since.counts = [a - b for a, b in zip(self.counts, earlier.counts, strict=True)]
        since.max, since._n = self.max, self._n - earlier._n
        return since

    def copy(self) -> Histogram:
        """Return a copy, which another thread's additions do not change."""
        copy = Histogram()
        copy.counts = self.counts.copy()
        copy.max, copy._n, copy.newest = self.max, sum(copy.counts), self.newest
        return copy

    def percentile(self, percent: float) -> float:
        """Return the smallest duration that `percent` % of all durations do not exceed, s; 0 if empty."""
        rank = max(1, math.ceil(percent / 100 * self._n))
        return min(self.max, float(_CENTRES[int(np.searchsorted(np.cumsum(self.counts), rank)) if self._n else 0]))

    def between(self, edges: list[float]) -> list[int]:
        """Return the number of durations between each two neighbouring `edges`, s."""
        counts, _ = np.histogram(_CENTRES, edges, weights=self.counts)
        return [int(n) for n in counts]

    def milliseconds(self) -> dict[str, Any]:
        """Return median, 99th percentile and maximum of the durations, ms."""
        return {"p50": 1e3 * self.percentile(50), "p99": 1e3 * self.percentile(99), "max": 1e3 * self.max}


class Ticker:
    """Wake every `period` seconds. Deadlines are absolute, so errors never add up.

    Missed deadlines are skipped::

        deadline   1    2    3    4    5
        wake       1    2      3.4     5      (4 is counted as missed)
    """

    def __init__(self, period: float, by: clock.Clock | None = None):
        """Args: `period`: s. `by`: clock; default: the process's."""
        self.period, self._clock = period, by or clock.current()
        self.next = self._clock.now() + period
        self.timing = Timing(period)

    def restart(self) -> None:
        """Set the next deadline to one period from now. Call this after work that was not part of a tick."""
        self.next = self._clock.now() + self.period

    def wait(self) -> float:
        """Sleep until the next deadline; return the lateness in seconds."""
        self._clock.sleep_until(self.next)
        return self.tick()

    def tick(self) -> float:
        """Take note of a tick, and set the next deadline; return the lateness in seconds."""
        now = self._clock.now()
        late = now - self.next
        skipped = int(late / self.period)
        self.timing.add(late, skipped, now)
        self.next += (1 + skipped) * self.period
        return late


@dataclass
class Drift:
    """Drift of a loop against its rate: slope of the least-squares line through the lateness of its ticks relative to a
    grid of its period from the first tick. The loop's own deadlines are not used, so a wrong period and pauses show."""

    ticks: int = 0
    mean_time: float = 0.0
    mean_late: float = 0.0
    variance: float = 0.0
    """Sum of squared deviations of the grid times from their mean, s^2."""
    covariance: float = 0.0
    """Sum of products of the deviations of grid times and of lateness from their means, s^2."""
    span: float = 0.0
    """Time from the first tick to the last tick on the grid, s."""

    def add(self, planned: float, late: float) -> None:
        """Add a tick that was planned `planned` s after the first tick and came `late` s late."""
        self.ticks += 1
        off = planned - self.mean_time
        self.mean_time += off / self.ticks
        self.mean_late += (late - self.mean_late) / self.ticks
        self.variance += off * (planned - self.mean_time)
        self.covariance += off * (late - self.mean_late)
        self.span = planned

    def __add__(self, other: Drift) -> Drift:
        """Combine the drifts of two loops that ran in sequence, each on its own grid."""
        variance, covariance = self.variance + other.variance, self.covariance + other.covariance
        return Drift(self.ticks + other.ticks, 0.0, 0.0, variance, covariance, self.span + other.span)

    @property
    def seconds(self) -> float:
        """Return the growth of the lateness from start to end along the line, s; 0 with fewer than two ticks."""
        return self.covariance / self.variance * self.span if self.variance else 0.0


@dataclass
class Timing:
    """Lateness statistics of a loop with the period `period`, s."""

    period: float
    late: Histogram = field(default_factory=Histogram)
    """Lateness of the ticks, s."""
    missed: int = 0
    """Number of deadlines that passed entirely while an earlier tick was late."""
    drift: Drift = field(default_factory=Drift)
    run: int = 0
    """Number of deadlines that were missed in a row until the last tick; 0 if that came within its period."""
    longest_run: int = 0
    seconds: deque[Second] = field(default_factory=lambda: deque(maxlen=10))
    """Last finished seconds, for a reader in another thread who takes them out."""
    at_level: dict[int, int] = field(default_factory=lambda: {WARN: 0, ERROR: 0})
    """Number of seconds by level."""
    _second: Second | None = None
    _first: float = math.nan

    def add(self, late: float, skipped: int, now: float) -> None:
        """Count a tick at `now`, monotonic s, that came `late` s late and skipped `skipped` deadlines."""
        if not self.late:
            self._first = now
        planned = (len(self.late) + self.missed) * self.period
        self.drift.add(planned, now - self._first - planned)
        self.late.add(late)
        self.missed += skipped
        self.run = self.run + skipped if skipped else 0
        self.longest_run = max(self.longest_run, self.run)
        if self._second is None:
            self._second = Second(self.period, now)
            return
        self._second.add(late, skipped, now, self.run)
        if self._second.is_over:
            done, self._second = self._second, Second(self.period, now)
            self.seconds.append(done)
            if level := done.level:
                self.at_level[level] += 1

    def __add__(self, other: Timing) -> Timing:
        """Combine the timings of two loops that ran in sequence."""
        both = Timing(self.period, self.late + other.late, self.missed + other.missed, self.drift + other.drift)
        both.longest_run = max(self.longest_run, other.longest_run)
        both.at_level = {level: count + other.at_level[level] for level, count in self.at_level.items()}
        return both

    def summary(self) -> dict[str, Any]:
        """Return the statistics for the report; names end in _us for times in microseconds."""
        edges = [0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
        counts = self.late.between([1e-6 * edge for edge in edges] + [math.inf])
        ticks, over = len(self.late), sum(counts[edges.index(1000) :])
        late = {name: 1e6 * self.late.percentile(p) for name, p in (("p50", 50), ("p99", 99), ("p999", 99.9))}
        return {
            "rate": 1 / self.period,
            "ticks": ticks,
            "seconds": (ticks + self.missed) * self.period,
            "late_share": (over + self.missed) / max(1, ticks + self.missed),
            "missed": self.missed,
            "longest_run_of_misses": self.longest_run,
            "seconds_at_warning": self.at_level[WARN],
            "seconds_at_error": self.at_level[ERROR],
            "drift_us": 1e6 * self.drift.seconds,
            "lateness_us": late | {"max": 1e6 * self.late.max},
            "histogram": {"edges_us": edges, "counts": counts},
        }


def prefer_realtime(priority: int = 40) -> bool:
    """Give the calling thread SCHED_FIFO and fine timer slack if permitted; warn otherwise. Threads and processes that
    this thread starts have normal priority. Priorities: joint states 45, commands 40, policy 20. A thread that holds
    the interpreter lock, such as the policy's, must not be preempted while the command thread waits for the lock. In
    lockstep nothing is given: its threads never pause, and all others would starve."""
    if sys.platform != "linux" or clock.in_lockstep():
        return False
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK, ns
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError:
        say_once("no real-time priority: for steadier timing allow it as `robot-rl doctor` says")
        return False
    return True


@cache
def say_once(warning: str) -> None:
    """Log a warning, unless this process has logged it before."""
    logger.warning(warning)


def scheduling() -> tuple[Any, ...]:
    """Return the calling thread's scheduling policy and parameters for `reschedule`; empty if unknown."""
    return (os.sched_getscheduler(0), os.sched_getparam(0)) if sys.platform == "linux" else ()


def reschedule(before: tuple[Any, ...]) -> None:
    """Restore the scheduling that `scheduling` returned; SCHED_RESET_ON_FORK stays set, as only root can clear it."""
    if before:
        policy, parameters = before
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)


def prefer_realtime_bus(priority: int = 45) -> None:
    """Give real-time priority to the calling thread, which reads the bus, and to DDS's receive threads."""
    if not prefer_realtime(priority):
        return
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            if (task / "comm").read_text().startswith("recv"):
                policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
                os.sched_setscheduler(int(task.name), policy, os.sched_param(priority))


def yield_to_robot() -> None:
    """Run this process only on otherwise idle processor time."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def bare_loop(rate: float, seconds: float = 2.0) -> Timing:
    """Measure a loop without work at the command loop's priority: the lower bound of lateness on this machine."""
    timings: list[Timing] = []

    def loop() -> None:
        prefer_realtime()
        ticker = Ticker(1 / rate, clock.WALL)
        for _ in range(round(rate * seconds)):
            ticker.wait()
        timings.append(ticker.timing)

    thread = threading.Thread(target=loop, name="bare-loop", daemon=True)  # Ctrl-C does not wait for it
    thread.start()
    thread.join()
    return timings[0]


def baseline(rate: float) -> dict[str, Any]:
    """Return the timing of a bare loop as the part `bare` of loop.json; nothing in lockstep, where no tick is late."""
    return {} if clock.in_lockstep() else {"bare": bare_loop(rate).summary()}
