"""Learning curves, each against steps and against seconds."""

from __future__ import annotations

from collections.abc import Sequence

from robot_rl.report.axes import SHARE, Axis, linear, logarithmic, running
from robot_rl.report.charts import Series, chart, series
from robot_rl.report.figures import figure, percent
from robot_rl.report.folders import RunFolder
from robot_rl.report.markup import Html, join, tag

_PANELS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Behaviour cloning loss", ("bc/loss",), "log"),
    ("Success while training", ("train/success",), "share"),
    ("Return while training", ("train/return",), "linear"),
    ("Tracking error, m/s and rad/s", ("env/velocity_error", "env/yaw_error"), "linear"),
    ("Q value", ("critic/q", "actor/q"), "linear"),
    ("Critic loss", ("critic/loss",), "log"),
    ("Steps that a person executed, share so far", ("robot/corrected_share",), "share"),
)
"""Curves that are always shown: title, metrics in one drawing, vertical axis."""
_NAMES = {"critic/q": "of actions in the replay", "actor/q": "of the policy\u2019s actions"}
_CLOCKS = ("step", "seconds", "train/steps")


def learning_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return the curves; runs of the same task and recipe, as from several seeds, share their drawings."""
    groups: dict[tuple[str, ...], list[RunFolder]] = {}
    for run in runs:
        if run.metrics:
            task, recipe = run.setting("task"), run.setting("recipe")
            groups.setdefault((task, recipe) if task and recipe else (run.path.as_posix(),), []).append(run)
    parts = [_group(group) for group in groups.values()]
    return join(parts) if any(parts) else None


def _group(group: list[RunFolder]) -> Html | None:
    known = {name for _, names, _ in _PANELS for name in names}
    panels = [
        drawing
        for title, names, kind in _PANELS
        for clock in ("step", "seconds")
        if (drawing := _panel(group, title, names, kind, clock))
    ]
    others = sorted({name for run in group for row in run.metrics for name in row} - known - {*_CLOCKS})
    more = [drawing for name in others if (drawing := _panel(group, name, (name,), "linear", "step"))]
    if not panels and not more:
        return None
    title = group[0].name if len(group) == 1 else f"{group[0].setting('recipe')}, {len(group)} runs"
    summary = tag("summary", f"{len(more)} more curve{'s' * (len(more) > 1)}")
    return join([
        tag("h3", title),
        tag("div", panels, class_="charts") if panels else None,
        tag("details", summary, tag("div", more, class_="charts"), class_="more") if more else None,
    ])  # fmt: skip


def _panel(group: list[RunFolder], title: str, names: tuple[str, ...], kind: str, clock: str) -> Html | None:
    lines: list[Series] = []
    for run in group:
        for name in names:
            said = run.name if len(group) > 1 else _NAMES.get(name, name)
            if len(group) > 1 and len(names) > 1:
                said = f"{run.name}, {_NAMES.get(name, name)}"
            lines.append(series(said, run.metrics, clock, name, f"c{len(lines) % 6 + 1}"))
    lines = [line for line in lines if line.x]
    if not lines:
        return None
    seconds = clock == "seconds"
    minutes = seconds and max(max(line.x) for line in lines) > 180
    if minutes:
        lines = [Series(line.name, [v / 60 for v in line.x], line.y, line.look) for line in lines]
    x_label = ("minutes" if minutes else "seconds") if seconds else "steps"
    x = running(v for line in lines for v in line.x)
    y = _vertical(kind, [v for line in lines for v in line.y])
    alt = f"{title} against {x_label}. " + "; ".join(_said(line, kind) for line in lines)
    return chart(title, alt, x, y, x_label, lines)


def _vertical(kind: str, values: list[float]) -> Axis:
    if kind == "share" and all(0 <= v <= 1 for v in values):
        return SHARE
    if kind == "log" and all(v > 0 for v in values):
        return logarithmic(values)
    return linear(values)


def _said(line: Series, kind: str) -> str:
    show = percent if kind == "share" else figure
    return f"{line.name}: from {show(line.y[0])} to {show(line.y[-1])}"
