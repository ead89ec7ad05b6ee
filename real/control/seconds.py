"""Figures of a loop in each second, with levels as of ros2_control's diagnostics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from real.topics import ERROR, OK, WARN

LIMITS = 0.05, 0.10
"""Shares of the period at which its mean error, or its standard deviation, is a warning, and an error."""
MISSES = 3
"""Number of consecutive missed deadlines that is an error."""
LATE = 0.001
"""Lateness above which a tick counts as late, s."""


@dataclass
class Second:
    """Ticks of a loop with the period `period`, s, within a second."""

    period: float
    began: float
    """Time of the tick before the first one, s."""
    late: list[float] = field(default_factory=list)
    """Lateness of each tick, s."""
    missed: int = 0
    """Number of deadlines that were missed."""
    longest_run: int = 0
    """Longest run of missed deadlines; it may have begun before."""
    _ended: float = math.nan
    _squares: float = 0.0
    """Sum of the squared errors of the period, relative to it."""

    def add(self, late: float, skipped: int, now: float, run: int) -> None:
        """Count a tick at `now`, s, that came `late` s late and skipped deadlines, the last of `run` missed ones."""
        before = self._ended if self.late else self.began
        self.late.append(late)
        self.missed, self.longest_run, self._ended = self.missed + skipped, max(self.longest_run, run), now
        self._squares += ((now - before) / self.period - 1) ** 2

    @property
    def is_over(self) -> bool:
        """Return whether a second has passed."""
        return self._ended - self.began >= 1.0 - self.period / 2

    @property
    def rate(self) -> float:
        """Return the number of ticks per second."""
        return len(self.late) / (self._ended - self.began)

    @property
    def error(self) -> float:
        """Return the mean error of the period, as a share of it."""
        return (self._ended - self.began) / len(self.late) / self.period - 1

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the period, as a share of it."""
        return math.sqrt(max(0.0, self._squares / len(self.late) - self.error**2))

    @property
    def late_share(self) -> float:
        """Return the share of late ticks and missed deadlines."""
        return (sum(late > LATE for late in self.late) + self.missed) / (len(self.late) + self.missed)

    @property
    def level(self) -> int:
        """Return OK, WARN or ERROR."""
        worst = max(abs(self.error), self.deviation)
        return ERROR if worst > LIMITS[1] or self.longest_run >= MISSES else WARN if worst > LIMITS[0] else OK

    @property
    def message(self) -> str:
        """Return the reason for the level."""
        if self.longest_run >= MISSES:
            return f"{self.longest_run} deadlines missed in a row"
        return f"period off by {self.error:.0%}, deviation {self.deviation:.0%}" if self.level else "on time"

    def values(self) -> dict[str, str]:
        """Return the figures by name."""
        return {
            "rate": f"{self.rate:.1f}", "period error": f"{self.error:.3f}", "period std": f"{self.deviation:.3f}",
            "late share": f"{self.late_share:.3f}", "lateness p99 ms": f"{1e3 * np.percentile(self.late, 99):.3f}",
            "lateness max ms": f"{1e3 * max(self.late):.3f}", "missed": str(self.missed),
            "longest run of misses": str(self.longest_run),
        }  # fmt: skip
