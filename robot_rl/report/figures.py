"""Formatting of numbers, and conversion of untrusted JSON values to numbers."""

import math
from typing import Any

ABSENT = "\u2013"
"""Text for a figure that was not recorded."""
_THIN = "\u202f"


def number(value: Any) -> float | None:
    """Return a finite number as a float; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def figure(value: Any, unit: str = "", digits: int = 3) -> str:
    """Format a number with `digits` significant digits, whole numbers with all digits: 12 345, 0.0123."""
    found = number(value)
    if found is None:
        return ABSENT
    if abs(found) < 1e12 and (found == round(found) or abs(found) >= 10**digits):
        shown = f"{found:,.0f}".replace(",", _THIN)
    else:
        shown = f"{found:.{digits}g}"
    return shown.replace("-", "\u2212", 1) + (_THIN + unit if unit else "")


def percent(value: Any, digits: int = 1) -> str:
    """Format a fraction as a percentage: 0.995 is 99.5 %, 0.54 is 54 %."""
    found = number(value)
    return ABSENT if found is None else _trimmed(100 * found, digits) + _THIN + "%"


def interval(low: Any, high: Any) -> str:
    """Format an interval of fractions as percentages: 64.1–76.9 %."""
    a, b = number(low), number(high)
    return ABSENT if a is None or b is None else f"{_trimmed(100 * a, 1)}\u2013{percent(b)}"


def _trimmed(value: float, digits: int) -> str:
    shown = f"{value:.{digits}f}"
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown == "-0" else shown


def duration(seconds: Any) -> str:
    """Format a time as 0.8 s, 42 s, 3 min 05 s or 2 h 10 min."""
    found = number(seconds)
    if found is None:
        return ABSENT
    if found < 60:
        return f"{found:.3g}{_THIN}s"
    whole = round(found)
    if whole < 3600:
        return f"{whole // 60}{_THIN}min {whole % 60:02d}{_THIN}s"
    return f"{whole // 3600}{_THIN}h {whole % 3600 // 60:02d}{_THIN}min"


def plain(value: Any) -> str:
    """Format any JSON value for a table."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return str(value) if isinstance(value, int) and number(value) is None else figure(value, digits=6)
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    return str(value)
