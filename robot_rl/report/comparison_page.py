"""Page of a comparison: table of differences, and learning curves as mean and range over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.report.blocks import Block, note, table
from robot_rl.report.charts import POINTS, Trace, line, text
from robot_rl.report.comparison import RunGroup
from robot_rl.report.figures import ABSENT, figure, percent
from robot_rl.report.page import Section, assemble, write_page
from robot_rl.report.training import NAMES, curve_points, metric_charts, panel

HEAD = ("Arm", "Recipe", "Seeds", "Episodes", "Mean", "Difference", "Decided")
"""Columns of the comparison's table; brackets contain 95 % intervals."""


def write_comparison(arms: Sequence[RunGroup], result: dict[str, Any], out: Path) -> None:
    """Write the result of `compare` as one self-contained HTML file."""
    rows = table_rows(result)
    notes = ["Intervals by a two-level bootstrap over seeds and episodes; Wilson or Student\u2019s t for one seed."]
    lines = [note(f"{said[:1].upper()}{said[1:]}.") for said in (*notes, *(n.rstrip(".") for n in result["notes"]))]
    best = result["arms"][-1].get("difference")
    lead = f"{result['arms'][-1]['arm']} against {result['arms'][0]['arm']}: {best['says']}." if best else ""
    sections: list[Section] = [
        ("comparison", f"{result['figure'].capitalize()} on held-out episodes",
         [table("Differences to the first arm, with 95\u202f% intervals", HEAD, rows, numbers=range(3, 6)), *lines]),
        ("learning", "Learning curves", curves(arms)),
        ("runs", "Runs", [table("Seeds of each arm", ("Arm", "Seed", "Folder"), [
            (arm.name, seed or ABSENT, run.path) for arm in arms for seed, run in zip(arm.seeds, arm.runs, strict=True)
        ], code=2)]),
    ]  # fmt: skip
    write_page(out, assemble(result["task"], lead, [run for arm in arms for run in arm.runs], sections))


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the formatted rows of a comparison's table; the columns are HEAD."""
    rate = result["figure"] == "success"
    show = (lambda value: percent(value, 0)) if rate else figure
    rows: list[tuple[str, ...]] = []
    for row in result["arms"]:
        seeds, cells = ", ".join(filter(None, row["seeds"])), ("", "")
        if found := row.get("difference"):
            ends = f"{_signed(found['low'], rate)}, {_signed(found['high'], rate)}"
            cells = f"{_signed(found['mean'], rate)} [{ends}]", found["says"] + (", paired" if found["paired"] else "")
        first = row["arm"], row["recipe"] or ABSENT, seeds or ABSENT, figure(row["episodes"])
        rows.append((*first, f"{show(row['mean'])} [{show(row['low'])}, {show(row['high'])}]", *cells))
    return rows


def _signed(value: float, rate: bool) -> str:
    return ("+" if value > 0 else "") + (percent(value, 0) if rate else figure(value)).replace("-", "\u2212")


def curves(arms: Sequence[RunGroup]) -> list[Block]:
    """Return a chart of each metric, over steps or minutes, with a curve per arm."""
    blocks = metric_charts([run for arm in arms for run in arm.runs], lambda *chart: _chart(arms, *chart))
    legend = note("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    return [Block("clock"), *blocks, legend] if blocks else []


def _chart(arms: Sequence[RunGroup], title: str, names: tuple[str, ...], scale: str) -> dict[str, Any] | None:
    traces: list[Trace] = []
    for k, arm in enumerate(arms):
        for name in names:
            label = ", ".join([arm.name] + [NAMES.get(name, name)] * (len(names) > 1))
            traces += band(label, arm, name, f"c{(k * len(names) + names.index(name)) % 6 + 1}")
    return panel(title, traces, scale)


def band(name: str, arm: RunGroup, metric: str, colour: str) -> list[Trace]:
    """Return a metric's mean and, for several seeds, range over the seeds; [] if a seed lacks the metric.

    Each seed's curve is interpolated between its rows; the result ends where the shortest curve ends.
    """
    found = [curve_points(run.metrics, metric) for run in arm.runs]
    if any(len(points) < 2 for points, _ in found):
        return []
    seeds = [np.array(points).T for points, _ in found]  # rows: steps, minutes, values
    first, last = max(x[0, 0] for x in seeds), min(x[0, -1] for x in seeds)
    steps = np.unique(np.concatenate([x[0] for x in seeds]))
    steps = steps[(steps >= first) & (steps <= last)]
    steps = steps[:: -(-len(steps) // POINTS) or 1]
    if len(steps) < 2:
        return []
    values = np.stack([np.interp(steps, x[0], x[2]) for x in seeds])
    minutes = np.mean([np.interp(steps, x[0], x[1]) for x in seeds], 0)
    timed = all(known for _, known in found)
    curve = line(
        name, [], _short(values.mean(0)), colour, clocks=_clocks(steps, minutes, timed), legendgroup=text(name)
    )
    if len(seeds) == 1:
        return [curve]
    low, high = values.min(0), values.max(0)
    around: Trace = {
        "type": "scatter", "mode": "lines", "name": text(name), "fill": "toself", "fillcolor": colour, "opacity": 0.2,
        "line": {"width": 0, "color": colour}, "hoverinfo": "skip", "showlegend": False, "legendgroup": text(name),
        "x": [], "y": _short(np.concatenate([high, low[::-1]])),
        "clocks": _clocks(np.concatenate([steps, steps[::-1]]), np.concatenate([minutes, minutes[::-1]]), timed),
    }  # fmt: skip
    return [around, curve]


def _clocks(steps: np.ndarray[Any, Any], minutes: np.ndarray[Any, Any], timed: bool) -> dict[str, list[float]]:
    return {"steps": _short(steps, 9)} | ({"minutes": _short(minutes)} if timed else {})


def _short(values: np.ndarray[Any, Any], digits: int = 5) -> list[float]:
    return [float(f"{v:.{digits}g}") for v in values]
