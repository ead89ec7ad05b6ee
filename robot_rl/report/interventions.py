"""Episodes on the robot: how much the operator had to help, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from robot_rl.report.axes import SHARE, running
from robot_rl.report.charts import Mark, Series, chart, drawable
from robot_rl.report.figures import ABSENT, figure, number, percent
from robot_rl.report.folders import Row, RunFolder
from robot_rl.report.markup import Html, facts, join, tag

_WINDOW = 10
"""Episodes in a moving average."""


def interventions_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return, for each run on a robot, the operator's share of the steps and success, episode by episode."""
    parts = [_episodes(run) for run in runs if run.episodes]
    return join(parts) if parts else None


def _episodes(run: RunFolder) -> Html:
    rows = run.episodes
    clock = [drawable(row.get("seconds")) for row in rows]
    known_times = [value for value in clock if value is not None]
    # a session that was resumed starts its clock again: then episodes are counted instead
    timed = len(known_times) == len(rows) and known_times == sorted(known_times)
    x = [(value or 0.0) / 60 if timed else float(i + 1) for i, value in enumerate(clock)]
    x_label = "minutes since the start" if timed else "episode"
    across = running(x)
    helped = [_helped(row) for row in rows]
    known = [(a, share) for a, share in zip(x, helped, strict=True) if share is not None]
    share = Series("moving average", [a for a, _ in known], moving_average([s for _, s in known]), "c2")
    told = [(a, row, h) for a, row, h in zip(x, rows, helped, strict=True) if isinstance(row.get("success"), bool)]
    outcomes = [float(row["success"]) for _, row, _ in told]
    success = Series("moving average", [a for a, _, _ in told], moving_average(outcomes))
    panels = []
    if known:
        alt = f"The operator's share of the steps of each episode, moving average: {_first_last(share)}"
        dots = [Mark(a, s, "dot", "c2 faint", percent(s, 0)) for a, s in known]
        panels.append(chart("Steps executed by the operator", alt, across, SHARE, x_label, [share], dots))
    if told:
        alt = f"Success of each episode, moving average: {_first_last(success)}"
        marks = [Mark(a, float(row["success"]), *_outcome(row, help_)) for a, row, help_ in told]
        panels.append(chart("Success", alt, across, SHARE, x_label, [success], marks))
    alone = sum(row["success"] and not help_ for _, row, help_ in told)
    won = sum(row["success"] for _, row, _ in told)
    steps, by_hand = _total(rows, "steps"), _total(rows, "intervention_steps")
    versions = [v for row in rows if (v := number(row.get("policy_version"))) is not None]
    pairs = [
        ("episodes", figure(len(rows))),
        ("successes", f"{won} of {len(told)}" if told else None),
        ("without help", f"{alone} of {len(told)}" if told and known else None),
        ("takeovers", figure(_total(rows, "takeovers"))),
        ("steps by the operator", percent(by_hand / steps) if steps and by_hand is not None else None),
        ("policy versions", f"{figure(min(versions))}\u2013{figure(max(versions))}" if versions else None),
    ]
    note = (
        f"One sign an episode: filled, success on its own; open, success with help; cross, failure. "
        f"Lines: mean of the last {_WINDOW} episodes, of fewer at the start."
    )
    return join([
        tag("h3", run.name),
        facts((name, value) for name, value in pairs if value != ABSENT),
        tag("div", panels, class_="charts"),
        tag("p", note, class_="note"),
    ])  # fmt: skip


def moving_average(values: Sequence[float], window: int = _WINDOW) -> list[float]:
    """Return the mean of the last `window` values at each place, of fewer at the start."""
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _helped(row: Row) -> float | None:
    steps, by_hand = number(row.get("steps")), number(row.get("intervention_steps"))
    return None if not steps or by_hand is None or by_hand < 0 or steps < 0 else min(1.0, by_hand / steps)


def _outcome(row: Row, helped: float | None) -> tuple[str, str, str]:
    if not row["success"]:
        return "cross", "fail", "failure"
    return ("dot", "c1 open", "success with help") if helped else ("dot", "c1", "success on its own")


def _total(rows: Sequence[Row], name: str) -> float | None:
    found = [v for row in rows if (v := number(row.get(name))) is not None]
    return sum(found) if found else None


def _first_last(line: Series) -> str:
    return f"{percent(line.y[0], 0)} at first, {percent(line.y[-1], 0)} at the end" if line.y else ABSENT
