"""Axes: where a value lies between 0 and 1, and which ticks are round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from robot_rl.report.figures import compact


@dataclass(frozen=True)
class Axis:
    """One direction of a chart."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value, 0 at the low end, 1 at the high end, kept inside."""
        a, b, v = self.low, self.high, value
        if self.log:
            a, b, v = math.log(a), math.log(b), math.log(max(v, self.low))
        return min(1.0, max(0.0, (v - a) / (b - a))) if b > a else 0.5


def linear(values: Iterable[float], zero: bool = False, label: Callable[[float], str] = compact) -> Axis:
    """Return an axis over values that ends on round numbers; `zero` takes in 0."""
    low, high = _span(values, zero)
    step = _round_step((high - low) / 4)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    count = round((high - low) / step)
    return Axis(low, high, tuple(((v := low + i * step), label(round(v, 12))) for i in range(count + 1)))


def running(values: Iterable[float], label: Callable[[float], str] = compact) -> Axis:
    """Return an axis for steps or time: it ends where the values end, so that a curve fills its chart."""
    low, high = _span(values, True)
    step = _round_step((high - low) / 4)
    first, last = math.ceil(low / step), math.floor(high / step)
    return Axis(low, high, tuple((i * step, label(round(i * step, 12))) for i in range(first, last + 1)))


def logarithmic(values: Iterable[float]) -> Axis:
    """Return a logarithmic axis over the positive values, with ticks at 1, 2, 5 or, over many decades, at 1 only."""
    positive = [v for v in values if v > 0] or [1.0]
    low, high = min(positive), max(positive)
    if high / low < 2:
        low, high = low / 1.5, high * 1.5
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    wide = last - first > 2
    marks = [m * 10.0**k for k in range(first, last + 1) for m in ((1,) if wide else (1, 2, 5))]
    low = max([m for m in marks if m <= low * (1 + 1e-9)], default=low)
    high = min([m for m in marks if m >= high * (1 - 1e-9)], default=high)
    inside = [m for m in marks if low <= m <= high]
    inside = inside[:: max(1, math.ceil(len(inside) / 6))]
    return Axis(low, high, tuple((m, compact(m)) for m in inside), log=True)


SHARE = Axis(0.0, 1.0, tuple((k / 4, f"{25 * k}\u202f%") for k in range(5)))
"""From 0 to 100 %."""


def _span(values: Iterable[float], zero: bool) -> tuple[float, float]:
    found = [*values, *([0.0] if zero else [])] or [0.0, 1.0]
    low, high = min(found), max(found)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-9):
        pad = abs(high) / 2 or 1.0
        low, high = (low, high + pad) if zero else (low - pad, high + pad)
    return low, high


def _round_step(step: float) -> float:
    """Return the next larger of 1, 2, 2.5, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= step * (1 - 1e-9))
