"""The page of a comparison: the table, and learning curves as means over seeds with the range of the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.report.blocks import Block, charts, note, table
from robot_rl.report.charts import POINTS, Trace, line, text
from robot_rl.report.comparison import RunGroup
from robot_rl.report.figures import ABSENT, figure, percent
from robot_rl.report.page import Section, assemble, write_page
from robot_rl.report.training import CLOCKS, NAMES, PANELS, curve_points, panel

HEAD = ("RunGroup", "Recipe", "Seeds", "Episodes", "Mean", "Difference", "Decided")
"""Brackets are 95 % intervals."""


def write_comparison(arms: Sequence[RunGroup], result: dict[str, Any], out: Path) -> None:
    """Write a comparison, as `compare` returns it, as one HTML file that needs nothing else."""
    rows = table_rows(result)
    notes = ["Intervals by a two-level bootstrap over seeds and episodes; Wilson or Student\u2019s t for one seed."]
    lines = [note(f"{said[:1].upper()}{said[1:]}.") for said in (*notes, *(n.rstrip(".") for n in result["notes"]))]
    best = result["arms"][-1].get("difference")
    lead = f"{result['arms'][-1]['arm']} against {result['arms'][0]['arm']}: {best['says']}." if best else ""
    sections: list[Section] = [
        ("comparison", f"{result['figure'].capitalize()} on held-out episodes",
         [table("Differences to the first arm, with 95\u202f% intervals", HEAD, rows, numbers=range(3, 6)), *lines]),
        ("learning", "Learning curves", curves(arms)),
        ("runs", "Runs", [table("Seeds of each arm", ("RunGroup", "Seed", "Folder"), [
            (arm.name, seed or ABSENT, run.path) for arm in arms for seed, run in zip(arm.seeds, arm.runs, strict=True)
        ], code=2)]),
    ]  # fmt: skip
    write_page(out, assemble(result["task"], lead, [run for arm in arms for run in arm.runs], sections))


def table_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table of a comparison, formatted; its columns are HEAD."""
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
    known = CLOCKS | {name for _, names, _ in PANELS for name in names}
    others = sorted({name for arm in arms for run in arm.runs for row in run.metrics for name in row} - known)
    blocks = [
        *charts(_chart(arms, *one) for one in PANELS),
        *charts([found for name in others if (found := _chart(arms, name, (name,), "linear"))], "more curves"),
    ]
    said = note("Lines are means over seeds, bands reach from the lowest to the highest seed.")
    return [Block("clock"), *blocks, said] if blocks else []


def _chart(arms: Sequence[RunGroup], title: str, names: tuple[str, ...], scale: str) -> dict[str, Any] | None:
    traces: list[Trace] = []
    for k, arm in enumerate(arms):
        for name in names:
            label = ", ".join([arm.name] + [NAMES.get(name, name)] * (len(names) > 1))
            traces += band(label, arm, name, f"c{(k * len(names) + names.index(name)) % 6 + 1}")
    return panel(title, traces, scale)


def band(name: str, arm: RunGroup, metric: str, colour: str) -> list[Trace]:
    """Return the mean of a metric over the seeds and, with several, the range of theirs; nothing if a seed lacks it.

    Between its rows a seed's metric is interpolated; the curve ends where the first seed ends.
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
