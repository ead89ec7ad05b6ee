"""Report sections on learning curves and on interventions of an operator."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from robot_rl.report.charts import (
    FRACTION,
    Block,
    Points,
    Trace,
    chart,
    charts,
    drawable,
    facts,
    heading,
    line,
    markers,
    note,
    thinned,
)
from robot_rl.report.figures import figure, number, percent
from robot_rl.report.folders import Row, RunFolder

PANELS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Behaviour cloning loss", ("bc/loss",), "log"),
    ("Success while training", ("train/success",), "fraction"),
    ("Return while training", ("train/return",), "linear"),
    ("Tracking error, m/s and rad/s", ("env/velocity_error", "env/yaw_error"), "linear"),
    ("Q value", ("critic/q", "actor/q"), "linear"),
    ("Critic loss", ("critic/loss",), "log"),
    ("Steps executed by a person, fraction so far", ("robot/corrected_share",), "fraction"),
)
"""Charts that are not folded away: title, metrics, type of the vertical axis."""
NAMES = {"critic/q": "of actions in the replay", "actor/q": "of the policy\u2019s actions"}
CLOCKS = {"step", "seconds", "train/steps"}
_WINDOW = 10
"""Number of episodes in the moving average."""


def learning_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return the learning curves; runs of the same task and recipe share charts."""
    groups: dict[tuple[str, ...], list[RunFolder]] = {}
    for run in runs:
        if run.metrics:
            task, recipe = run.setting("task"), run.setting("recipe")
            groups.setdefault((task, recipe) if task and recipe else (run.path.as_posix(),), []).append(run)
    blocks = [block for group in groups.values() for block in _curves(group)]
    return [Block("clock"), *blocks] if blocks else []


def _curves(group: list[RunFolder]) -> list[Block]:
    blocks = metric_charts(group, lambda *chart: _panel(group, *chart))
    title = group[0].name if len(group) == 1 else f"{group[0].setting('recipe')}, {len(group)} runs"
    return [heading(title), *blocks] if blocks else []


def metric_charts(
    runs: Iterable[RunFolder], draw: Callable[[str, tuple[str, ...], str], dict[str, Any] | None]
) -> list[Block]:
    """Return charts of all metrics, made by `draw`(title, metrics, scale); metrics outside PANELS are folded away."""
    known = CLOCKS | {name for _, names, _ in PANELS for name in names}
    others = sorted({name for run in runs for row in run.metrics for name in row} - known)
    more = [chart for name in others if (chart := draw(name, (name,), "linear"))]
    return [*charts(draw(*panel) for panel in PANELS), *charts(more, f"{len(more)} more curve{'s' * (len(more) > 1)}")]


def _panel(group: list[RunFolder], title: str, names: tuple[str, ...], scale: str) -> dict[str, Any] | None:
    traces: list[Trace] = []
    for run in group:
        for name in names:
            parts = [run.name] * (len(group) > 1) + [NAMES.get(name, name)] * (len(names) > 1 or len(group) == 1)
            if curve := _curve(", ".join(parts), run.metrics, name, f"c{len(traces) % 6 + 1}"):
                traces.append(curve)
    return panel(title, traces, scale)


def panel(title: str, traces: Sequence[Trace], scale: str) -> dict[str, Any] | None:
    """Return a chart of curves, or None without a curve; `scale` of the vertical axis is fraction, log or linear."""
    values = [v for trace in traces for v in trace["y"]]
    if not values:
        return None
    axis: dict[str, Any] = {}
    if scale == "fraction" and all(0 <= v <= 1 for v in values):
        axis = FRACTION
    elif scale == "log" and 0 < 10 * min(values) < max(values):
        axis = {"type": "log", "tickformat": "~g", "dtick": 1 if 100 * min(values) < max(values) else "D2"}
    show = percent if scale == "fraction" else figure
    named = [trace for trace in traces if trace.get("showlegend", True)]
    said = (f"{trace['name']}: from {show(trace['y'][0])} to {show(trace['y'][-1])}" for trace in named)
    return chart(title, f"{title}. " + "; ".join(said), traces, yaxis=axis)


def curve_points(rows: Sequence[Row], metric: str) -> tuple[Points, bool]:
    """Return a metric's points (step, minutes, value), and whether all minutes are known; unknown minutes are 0."""
    found = [[drawable(row.get(key)) for key in ("step", "seconds", metric)] for row in rows]
    timed = all(seconds is not None for _, seconds, _ in found)
    return [(a, (b or 0.0) / 60, c) for a, b, c in found if a is not None and c is not None], timed


def _curve(name: str, rows: Sequence[Row], metric: str, colour: str) -> Trace | None:
    """Return the trace of a metric over steps and minutes; None for fewer than two points."""
    points, timed = curve_points(rows, metric)
    points = thinned(points)
    if len(points) < 2:
        return None
    steps, minutes, values = (list(column) for column in zip(*points, strict=True))
    clocks = {"steps": steps} | ({"minutes": [round(v, 4) for v in minutes]} if timed else {})
    return line(name, [], values, colour, clocks=clocks)


def interventions_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return charts of the operator's share of the steps and of success by episode, for each run on a robot."""
    return [block for run in runs if run.episodes for block in _episodes(run)]


def _episodes(run: RunFolder) -> list[Block]:
    rows = run.episodes
    times = [seconds for row in rows if (seconds := drawable(row.get("seconds"))) is not None]
    # A resumed session restarts its clock; the axis then counts episodes.
    timed = len(times) == len(rows) and times == sorted(times)
    x = [seconds / 60 for seconds in times] if timed else [float(i + 1) for i in range(len(rows))]
    axis = {"title": "minutes since the start" if timed else "episode"}
    helped = [_helped(row) for row in rows]
    known = [(a, h) for a, h in zip(x, helped, strict=True) if h is not None]
    ended = [(a, row["success"], h) for a, row, h in zip(x, rows, helped, strict=True)
             if isinstance(row.get("success"), bool)]  # fmt: skip
    panels = []
    if len(known) > 1:
        where, values = [a for a, _ in known], [h for _, h in known]
        panels.append(_averaged("Steps executed by the operator", where, values, "c2", axis, [
            markers("an episode", where, values, "c2", "circle", opacity=0.45)]))  # fmt: skip
    if len(ended) > 1:
        kinds = {
            "success on its own": ("c1", "circle", [a for a, won, h in ended if won and not h]),
            "success with help": ("c1", "circle-open", [a for a, won, h in ended if won and h]),
            "failure": ("c6", "x-thin", [a for a, won, _ in ended if not won]),
        }
        signs = [markers(name, at, [float(name != "failure")] * len(at), colour, symbol)
                 for name, (colour, symbol, at) in kinds.items() if at]  # fmt: skip
        panels.append(
            _averaged("Success", [a for a, *_ in ended], [float(won) for _, won, _ in ended], "c1", axis, signs)
        )
    steps, by_hand = _total(rows, "steps"), _total(rows, "intervention_steps")
    versions = [v for row in rows if (v := number(row.get("policy_version"))) is not None]
    alone = sum(won and not h for _, won, h in ended)
    pairs = [
        ("episodes", figure(len(rows))),
        ("successes", f"{sum(won for _, won, _ in ended)} of {len(ended)}" if ended else None),
        ("without help", f"{alone} of {len(ended)}" if ended and known else None),
        ("takeovers", figure(_total(rows, "takeovers"))),
        ("steps by the operator", percent(by_hand / steps) if steps and by_hand is not None else None),
        ("policy versions", " to ".join(map(figure, sorted({min(versions), max(versions)}))) if versions else None),
    ]
    drawn = charts(panels)
    lines = [note(f"Lines: mean of the last {_WINDOW} episodes, of fewer at the start.")] if drawn else []
    return [heading(run.name), facts(pairs), *drawn, *lines]


def _averaged(title: str, x: list[float], y: list[float], colour: str, axis: Row, signs: list[Trace]) -> dict[str, Any]:
    """Return a chart of the markers `signs`, one per episode, and the moving average of `y`."""
    mean = moving_average(y)
    alt = f"{title}, moving average: {percent(mean[0], 0)} at first, {percent(mean[-1], 0)} at the end"
    average = line("moving average", x, mean, colour, mode="lines")
    return chart(title, alt, [average, *signs], xaxis=axis, yaxis=FRACTION, hovermode="closest")


def moving_average(values: Sequence[float], window: int = _WINDOW) -> list[float]:
    """Return, for each index, the mean of the last `window` values, or of fewer values at the start."""
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _helped(row: Row) -> float | None:
    """Return the fraction of an episode's steps that the operator executed; None if unknown."""
    steps, by_hand = number(row.get("steps")), number(row.get("intervention_steps"))
    return None if not steps or by_hand is None or by_hand < 0 or steps < 0 else min(1.0, by_hand / steps)


def _total(rows: Sequence[Row], name: str) -> float | None:
    found = [v for row in rows if (v := number(row.get(name))) is not None]
    return sum(found) if found else None
