"""Charts as plotly traces and layouts; `templates/charts.js` adds what all share: type, colours, margins.

A colour is the name of one in the palette, c1 to c6, which the page replaces by the one for day, night or print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robot_rl.report.figures import number

POINTS = 800
"""A longer curve is averaged down to this many points; no screen shows more."""
FRACTION = {"tickformat": ".0%", "hoverformat": ".1%", "range": [-0.06, 1.06]}
"""A vertical axis from 0 to 100 %."""

Trace = dict[str, Any]
Points = list[tuple[float, ...]]


def drawable(value: object) -> float | None:
    """Return a number that an axis can hold: beyond 1e60 it is no measurement, below 1e-60 it is zero."""
    found = number(value)
    if found is None or abs(found) > 1e60:
        return None
    return float(f"{found:.5g}") if abs(found) > 1e-60 else 0.0


def text(value: object) -> str:
    """Escape text for plotly, which takes <b> and the like in labels for markup."""
    return str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def thinned(points: Points) -> Points:
    """Return points averaged in groups so that at most POINTS are left; the last one is kept as it is."""
    size = -(-len(points) // POINTS)
    if size < 2:
        return points
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    means = [
        tuple(float(f"{sum(column) / len(group):.5g}") for column in zip(*group, strict=True)) for group in groups[:-1]
    ]
    return [*means, points[-1]]


def line(name: str, x: Sequence[object], y: Sequence[float], colour: str = "c1", **more: Any) -> Trace:
    """Return a curve; short ones also show their points."""
    look = {"line": {"width": 2, "color": colour}, "marker": {"size": 5, "color": colour}}
    mode = "lines+markers" if len(y) <= 20 else "lines"
    return {"type": "scatter", "mode": mode, "name": text(name), "x": list(x), "y": list(y), **look, **more}


def markers(name: str, x: Sequence[float], y: Sequence[object], colour: str, symbol: str, **more: Any) -> Trace:
    """Return single signs, each with its place under the pointer."""
    look = {"color": colour, "symbol": symbol, "size": 8, "line": {"color": colour, "width": 1.5}}
    return {
        "type": "scatter", "mode": "markers", "name": text(name), "x": list(x), "y": list(y), "marker": look, **more,
    }  # fmt: skip


def chart(title: str, alt: str, traces: Sequence[Trace], **layout: Any) -> dict[str, Any]:
    """Return a figure for the page; `alt` says what it shows to those who cannot see it."""
    return {"title": title, "alt": alt, "figure": {"data": list(traces), "layout": layout}}
