"""Blocks of a page's sections, and charts as plotly traces and layouts.

`templates/blocks.html` has a macro for each kind of block; `templates/charts.js` adds fonts, colours and margins.

Colours are palette names, c1 to c6; the page replaces them by the colours for day, night or print.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from robot_rl.report.figures import ABSENT, number

POINTS = 800
"""Maximum number of points of a curve; in longer curves, groups of points are averaged."""
FRACTION = {"tickformat": ".0%", "hoverformat": ".1%", "range": [-0.06, 1.06]}
"""Settings of a vertical axis from 0 to 100 %."""

Trace = dict[str, Any]
Points = list[tuple[float, ...]]


def drawable(value: object) -> float | None:
    """Return a number that an axis can show: None if not finite or above 1e60, zero if below 1e-60."""
    found = number(value)
    if found is None or abs(found) > 1e60:
        return None
    return float(f"{found:.5g}") if abs(found) > 1e-60 else 0.0


def text(value: object) -> str:
    """Escape text for plotly, which interprets <b> and the like in labels as markup."""
    return str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def thinned(points: Points) -> Points:
    """Average groups of points so that at most POINTS are left; the last point stays unchanged."""
    size = -(-len(points) // POINTS)
    if size < 2:
        return points
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    means = [tuple(float(f"{sum(axis) / len(part):.5g}") for axis in zip(*part, strict=True)) for part in parts[:-1]]
    return [*means, points[-1]]


def line(name: str, x: Sequence[object], y: Sequence[float], colour: str = "c1", **more: Any) -> Trace:
    """Return the trace of a curve; curves of up to 20 points also have markers."""
    look = {"line": {"width": 2, "color": colour}, "marker": {"size": 5, "color": colour}}
    mode = "lines+markers" if len(y) <= 20 else "lines"
    return {"type": "scatter", "mode": mode, "name": text(name), "x": list(x), "y": list(y), **look, **more}


def markers(name: str, x: Sequence[float], y: Sequence[object], colour: str, symbol: str, **more: Any) -> Trace:
    """Return a trace of markers without a line."""
    look = {"color": colour, "symbol": symbol, "size": 8, "line": {"color": colour, "width": 1.5}}
    return {
        "type": "scatter", "mode": "markers", "name": text(name), "x": list(x), "y": list(y), "marker": look, **more,
    }  # fmt: skip


def chart(title: str, alt: str, traces: Sequence[Trace], **layout: Any) -> dict[str, Any]:
    """Return a figure for the page; `alt` is its text alternative."""
    return {"title": title, "alt": alt, "figure": {"data": list(traces), "layout": layout}}


@dataclass(frozen=True)
class Block:
    """Part of a section: name and data of the macro that draws the block. The template escapes text."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


def heading(text: str) -> Block:
    """Return a heading one level below the section's heading."""
    return Block("heading", {"text": text})


def note(text: str) -> Block:
    """Return a paragraph in small type."""
    return Block("note", {"text": text})


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], numbers: Iterable[int] = (), code: int = -1
) -> Block:
    """Return a table. Columns in `numbers` are aligned to the right; columns from index `code` on are set as code."""
    classes = ["number" if i in numbers else "code" if 0 <= code <= i else "" for i in range(len(head))]
    return Block("table", {"caption": caption, "head": head, "rows": rows, "classes": classes})


def facts(pairs: Iterable[tuple[str, object]]) -> Block:
    """Return a definition list of short facts; facts without a value are left out."""
    return Block("facts", {"pairs": [(name, value) for name, value in pairs if value not in (None, "", ABSENT)]})


def charts(figures: Iterable[dict[str, Any] | None], summary: str = "") -> list[Block]:
    """Return charts side by side, folded away under the line `summary` if this is given; [] if all figures are None."""
    found = [chart for chart in figures if chart is not None]
    return [Block("charts", {"charts": found, "summary": summary})] if found else []
