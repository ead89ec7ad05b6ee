"""The control loop against the clock, and what the shield did to its commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robot_rl.report.axes import Axis
from robot_rl.report.charts import bars, chart, outline, stairs
from robot_rl.report.figures import ABSENT, compact, figure, number, percent, plain
from robot_rl.report.folders import Row, RunFolder
from robot_rl.report.markup import Html, join, table, tag

_GOALS = "goals changed or refused"
_COUNTED = {
    _GOALS: ("nonfinite", "position", "workspace", "start mismatch"),
    "times it began, however long": ("stop", "stale state", "stale goal", "tilt", "joint speed"),
    "control periods": ("nonfinite action", "operator lost", "stale object"),
    "pictures recorded again": ("stale picture",),
}
"""What the counts of `loop.json` are counts of."""
_INFERENCE, _AGE = "policy: from observation to action", "command loop: age of the joint state"


def loop_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return lateness and other times of every control loop, beside those of a bare loop on the same machine."""
    found = [run for run in runs if run.loop]
    if not found:
        return None
    rows, times = [], []
    for run in found:
        learner = run.loop.get("learner")
        rows.append(_lateness(run.name, run.loop, plain(learner) if learner else ABSENT))
        if bare := _part(run.loop, "bare"):
            rows.append(_lateness(f"{run.name}, bare loop", bare, ABSENT))
        for name, key in ((_INFERENCE, "inference_ms"), (_AGE, "state_age_ms")):
            if part := _part(run.loop, key):
                times.append((run.name, name, *(figure(part.get(k), "ms") for k in ("p50", "p99", "max"))))
    head = (
        "Loop",
        "Learner",
        "Rate",
        "Ticks",
        "p50",
        "p99",
        "p99.9",
        "Largest",
        "Late > 1\u202fms",
        "Missed",
        "Drift",
    )
    drawings = [drawing for run in found if (drawing := histogram(run))]
    return join([
        table("How late the ticks of the command loop were", head, rows, numbers=range(2, 11)),
        tag("div", drawings, class_="charts") if drawings else None,
        table("Times of policy and command loop", ("Loop", "What", "p50", "p99", "Largest"), times, numbers=(2, 3, 4))
        if times else None,
    ])  # fmt: skip


def _lateness(name: str, loop: Row, learner: str) -> tuple[str, ...]:
    late, ticks = dict(_part(loop, "lateness_us")), number(loop.get("ticks"))
    if ticks is not None and ticks < 1000:
        late.pop("p999", None)  # of fewer than a thousand it is the largest
    return (
        name, learner, figure(loop.get("rate"), "Hz"), figure(ticks),
        *(figure(late.get(key), "\u00b5s") for key in ("p50", "p99", "p999", "max")),
        percent(loop.get("late_share"), 3), figure(loop.get("missed")), figure(loop.get("drift_us"), "\u00b5s"),
    )  # fmt: skip


def histogram(run: RunFolder) -> Html | None:
    """Return the distribution of lateness: bars for the loop, a line for the bare loop, shares on a log scale."""
    mine, bare = _shares(run.loop), _shares(_part(run.loop, "bare"))
    if mine is None:
        return None
    edges, shares, total = mine
    # the floor lies below a single tick, so that one late tick in a million still stands out
    floor = 10.0 ** -len(str(int(total)))
    ticks = [10.0**k for k in range(-len(str(int(total))), 1)]
    ticks = ticks[:: -max(1, -(-len(ticks) // 5))]
    y = Axis(floor, 1.0, tuple((t, percent(t, 6)) for t in ticks), log=True)
    n = len(shares)
    every = -(-n // 6)
    x = Axis(0, n, tuple((i, edges[i]) for i in range(0, n + 1, every)))
    titles = [f"{edges[i]} to {edges[i + 1]} \u00b5s: {percent(s, 4)}" for i, s in enumerate(shares)]
    same = bare is not None and bare[0] == edges
    line = outline(stairs(bare[1], y), "c2") if bare and same else None
    note = (
        "Bars: this loop. "
        + (f"Line: the bare loop, {figure(bare[2])} ticks. " if bare and line else "")
        + "Share of ticks, on a logarithmic scale."
    )
    worst = figure(_part(run.loop, "lateness_us").get("max"), "\u00b5s")
    alt = f"Histogram of the lateness of {figure(total)} ticks of {run.name}; the largest is {worst}"
    drawing = join([bars(shares, y, "c1", titles), line])
    return chart(f"Lateness, {run.name}", alt, x, y, "\u00b5s", under=drawing, note=note)


def _shares(loop: Row) -> tuple[list[str], list[float], float] | None:
    """Return labels of the edges, shares, and the number of ticks; the last bin may be open."""
    found = _part(loop, "histogram")
    edges, counts = found.get("edges_us"), found.get("counts")
    if not isinstance(edges, list) or not isinstance(counts, list) or not counts:
        return None
    values = [number(count) for count in counts]
    labels = [compact(v) if (v := number(edge)) is not None else "\u221e" for edge in edges]
    if len(labels) == len(values):
        labels.append("\u221e")
    if len(labels) != len(values) + 1 or any(v is None or v < 0 for v in values):
        return None
    total = sum(v or 0.0 for v in values)
    return (labels, [(v or 0.0) / total for v in values], total) if 0 < total < 1e15 else None


def shield_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return how often the shield or a watchdog stepped in, by reason."""
    found = [(run, run.loop["shield"]) for run in runs if isinstance(run.loop.get("shield"), dict)]
    if not found:
        return None
    reasons = sorted({reason for _, counts in found for reason in counts})
    if not reasons:
        return tag("p", "The shield changed no command.")
    units = {reason: unit for unit, known in _COUNTED.items() for reason in known}
    rows = [
        (reason, units.get(reason, ABSENT), *(_count(counts, reason, run) for run, counts in found))
        for reason in reasons
    ]
    head = ("Reason", "What is counted", *(run.name for run, _ in found))
    caption = "How often the shield or a watchdog stepped in; of goals also the share of all that were posted"
    return table(caption, head, rows, numbers=range(2, len(head)))


def _count(counts: Row, reason: str, run: RunFolder) -> str:
    count, goals = number(counts.get(reason, 0)), number(run.loop.get("goals"))
    if count is None:
        return ABSENT
    share = count and goals and reason in _COUNTED[_GOALS]
    return f"{figure(count)} ({percent(count / goals, 2)})" if share and goals else figure(count)


def _part(row: Row, name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}
