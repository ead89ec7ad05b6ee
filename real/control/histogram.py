"""Count durations in bins of equal ratio: percentiles of any number of them in constant memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

SMALLEST = 1e-8
"""Shorter durations count as 0, s."""
WIDTH = math.log(1.01)
"""Width of a bin on the logarithmic axis: percentiles are within 0.5 %."""
BINS = 2800
"""Number of bins; the last one ends at 3 hours."""
_CENTRES = np.concatenate([[0.0], SMALLEST * np.exp(WIDTH * (np.arange(1, BINS) - 0.5))])


class Histogram:
    """A histogram of durations; their number and the largest are exact. `add` takes about 1 µs."""

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.max = 0.0
        """s"""
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, seconds: float) -> None:
        """Count one duration, s."""
        self._n += 1
        self.max = max(self.max, seconds)
        k = math.ceil(math.log(seconds / SMALLEST) / WIDTH) if seconds > SMALLEST else 0
        self.counts[min(k, BINS - 1)] += 1

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of the durations of both."""
        both = Histogram()
        both.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        both.max, both._n = max(self.max, other.max), self._n + other._n
        return both

    def percentile(self, percent: float) -> float:
        """Return the smallest duration that `percent` of all do not exceed, s; 0 if there are none."""
        rank = max(1, math.ceil(percent / 100 * self._n))
        return min(self.max, float(_CENTRES[int(np.searchsorted(np.cumsum(self.counts), rank)) if self._n else 0]))

    def between(self, edges: list[float]) -> list[int]:
        """Return how many lie between neighbouring edges, s."""
        counts, _ = np.histogram(_CENTRES, edges, weights=self.counts)
        return [int(n) for n in counts]

    def milliseconds(self) -> dict[str, Any]:
        """Return median, 99th percentile and largest, ms."""
        return {"p50": 1e3 * self.percentile(50), "p99": 1e3 * self.percentile(99), "max": 1e3 * self.max}
