"""Charts as inline SVG, each a pure function from numbers to markup.

Places are given in per cent of the drawing, type and strokes in pixels: a chart fills whatever width it gets, and its
labels stay readable on a phone. Curves lie in an inner drawing of 1000 x 1000 that stretches with the chart. Ticks are
drawn outside the drawing, into the padding that the style sheet leaves around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robot_rl.report.axes import Axis
from robot_rl.report.figures import number
from robot_rl.report.markup import Html, join, tag

_POINTS = 500
"""A longer curve is averaged down to so many points; no screen shows more."""
_SHAPES = {
    "circle": "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z",
    "diamond": "M0-6.5 6.5 0 0 6.5-6.5 0Z",
    "square": "M-4.5-4.5h9v9h-9Z",
    "cross": "M-3.5-3.5 3.5 3.5M3.5-3.5-3.5 3.5",
    "dot": "M-3 0A3 3 0 1 0 3 0A3 3 0 1 0-3 0Z",
}


@dataclass(frozen=True)
class Series:
    """A curve; `look` is the class that the style sheet colours, c1 to c6."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: str = "c1"


@dataclass(frozen=True)
class Mark:
    """A single sign in a chart, with a title that appears under the pointer."""

    x: float
    y: float
    shape: str
    look: str
    title: str = ""


def series(name: str, rows: Sequence[dict[str, object]], x: str, y: str, look: str = "c1") -> Series:
    """Take a curve from rows of metrics; rows without both numbers are skipped."""
    pairs = [(drawable(row.get(x)), drawable(row.get(y))) for row in rows]
    found = [(a, b) for a, b in pairs if a is not None and b is not None]
    return Series(name, [a for a, _ in found], [b for _, b in found], look)


def drawable(value: object) -> float | None:
    """Return a number that an axis can hold: beyond 1e60 it is no measurement, below 1e-60 it is zero."""
    found = number(value)
    if found is None or abs(found) > 1e60:
        return None
    return found if abs(found) > 1e-60 else 0.0


def pc(share: float) -> str:
    """Return a share as an SVG percentage."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def sign(x: float, y: float, shape: str, look: str, title: str = "") -> Html:
    """Return a sign at shares of the drawing, from the left and from the top."""
    path = tag("path", d=_SHAPES[shape])
    return tag("svg", path, tag("title", title) if title else None, x=pc(x), y=pc(y), class_=f"sign {shape} {look}")


def grid(x: Axis | None, y: Axis | None, x_label: str = "") -> Html:
    """Return grid lines and tick labels."""
    out: list[Html] = []
    for value, label in y.ticks if y else ():
        at = pc(1 - y.at(value)) if y else ""
        out.append(tag("line", x1="0", x2="100%", y1=at, y2=at, class_="grid"))
        out.append(tag("text", label, x="0", y=at, dx="-10", dy="4", text_anchor="end"))
    for value, label in x.ticks if x else ():
        at = pc(x.at(value)) if x else ""
        out.append(tag("line", x1=at, x2=at, y1="100%", y2="100%", class_="tick"))
        out.append(tag("text", label, x=at, y="100%", dy="18", text_anchor="middle"))
    if x_label:
        out.append(tag("text", x_label, x="100%", y="100%", dy="36", text_anchor="end", class_="axis"))
    return join(out)


def curve(line: Series, x: Axis, y: Axis) -> Html:
    """Return a line through the points, in the inner drawing."""
    points = _thinned(list(zip(line.x, line.y, strict=True)))
    if len(points) < 2:
        return join(sign(x.at(a), 1 - y.at(b), "dot", line.look) for a, b in points)
    return outline([(x.at(a), 1 - y.at(b)) for a, b in points], line.look)


def chart(
    title: str, alt: str, x: Axis, y: Axis, x_label: str,
    lines: Sequence[Series] = (), marks: Sequence[Mark] = (), under: Html | None = None, note: object = None,
) -> Html:  # fmt: skip
    """Return a figure: title, legend when there are several curves, drawing, note."""
    named = [line for line in lines if line.x]
    legend = tag("span", [
        tag("span", tag("svg", tag("path", d="M0 6H18", class_=f"curve {line.look}"), class_="key"), " ", line.name)
        for line in named
    ], class_="legend") if len(named) > 1 else None  # fmt: skip
    drawing = tag(
        "svg", grid(x, y, x_label), under, [curve(line, x, y) for line in named],
        [sign(x.at(m.x), 1 - y.at(m.y), m.shape, m.look, m.title) for m in marks],
        role="img", aria_label=alt,
    )  # fmt: skip
    return tag(
        "figure", tag("figcaption", tag("strong", title), legend), tag("div", drawing, class_="plot"),
        tag("p", note, class_="note") if note else None, class_="chart",
    )  # fmt: skip


def bars(shares: Sequence[float], y: Axis, look: str, titles: Sequence[str]) -> Html:
    """Return bars of equal width side by side; nothing is drawn for an empty one."""
    out = []
    for i, (share, title) in enumerate(zip(shares, titles, strict=True)):
        if share > 0:
            top = 1 - y.at(share)
            place = {"x": pc((i + 0.08) / len(shares)), "width": pc(0.84 / len(shares))}
            out.append(tag("rect", tag("title", title), y=pc(top), height=pc(1 - top), class_=f"bar {look}", **place))
    return join(out)


def stairs(shares: Sequence[float], y: Axis) -> list[tuple[float, float]]:
    """Return the outline of bars as points, both shares of the drawing; an empty bar falls to the floor."""
    n = len(shares)
    level = [y.at(s) if s > 0 else 0.0 for s in shares]
    return [(x / n, 1 - v) for i, v in enumerate(level) for x in (i, i + 1)]


def outline(points: Sequence[tuple[float, float]], look: str) -> Html:
    """Return a line through shares of the drawing."""
    path = " ".join(f"{1000 * a:.0f} {1000 * b:.0f}" for a, b in points)
    return tag(
        "svg", tag("path", d=f"M{path}", class_=f"curve {look}"),
        viewBox="0 0 1000 1000", preserveAspectRatio="none", width="100%", height="100%",
    )  # fmt: skip


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= _POINTS:
        return points
    size = -(-len(points) // _POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    # the last point is kept as it is: it is the one people read off
    return [(sum(a for a, _ in g) / len(g), sum(b for _, b in g) / len(g)) for g in groups[:-1]] + [points[-1]]
