"""Sections of the report: success by stage and by instruction, all evaluations, and the task's other metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robot_rl.report.charts import FRACTION, Block, chart, charts, markers, note, table, text
from robot_rl.report.figures import duration, figure, interval, number, percent, plain
from robot_rl.report.folders import Row, RunFolder
from robot_rl.util.statistics import wilson

LOOKS = {"simulation": ("c1", "circle"), "twin": ("c2", "diamond")}
OTHER = ("c3", "square")
"""Colour and symbol of places not in LOOKS. Places differ in both, for black-and-white prints and colour blindness."""
_ROW = 52
"""Height of a stage in the chart of success rates, pixels."""
_UNITS = {
    "velocity_error": "m/s", "yaw_error": "rad/s", "foot_slip": "m/s", "swing_height": "m", "air_time": "s",
    "power": "W", "base_height": "m", "command_speed": "m/s", "speed_along_command": "m/s",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """Evaluation that has a success rate."""

    run: str
    label: str
    where: str
    episodes: int
    success: float
    success_low: float | None
    success_high: float | None

    @property
    def shown(self) -> str:
        """Success rate with its interval, as text."""
        if self.success_low is None:
            return percent(self.success)
        return f"{percent(self.success)} ({interval(self.success_low, self.success_high)})"


def stages(runs: Sequence[RunFolder]) -> list[Stage]:
    """Return the evaluations with a success rate, in the order of the runs."""
    return [stage for run in runs for row in run.evaluations if (stage := _stage(run, row)) is not None]


def _stage(run: RunFolder, row: Row) -> Stage | None:
    success = number(row.get("success"))
    if success is None or not 0 <= success <= 1:
        return None
    episodes = int(number(row.get("episodes")) or 0)
    low, high = number(row.get("success_low")), number(row.get("success_high"))
    if (low is None or high is None) and 0 < episodes < 1e12:
        low, high = wilson(round(success * episodes), episodes)
    where = row.get("where")
    where = where if isinstance(where, str) and where else "unknown"
    return Stage(run.name, str(row.get("label") or run.name), where, episodes, success, low, high)


def sentence(found: Sequence[Stage]) -> str:
    """Return a sentence on success at each place (such as the twin) with two to four stages whose labels all differ."""
    parts = []
    for where in dict.fromkeys(stage.where for stage in found):
        group = [stage for stage in found if stage.where == where]
        place = {"simulation": " in simulation", "twin": " on the twin", "unknown": ""}.get(where, f" on the {where}")
        if 1 < len(group) == len({stage.label for stage in group}) <= 4:
            parts.append(f"success{place}: " + ", then ".join(f"{percent(s.success)} ({s.label})" for s in group))
    joined = "; ".join(parts)
    return joined[:1].upper() + joined[1:] + "." if joined else ""


def success_section(found: Sequence[Stage]) -> list[Block]:
    """Return a card for each stage and a chart of the stages' intervals."""
    if not found:
        return []
    cards = [
        {"colour": LOOKS.get(s.where, OTHER)[0], "where": s.where, "success": percent(s.success),
         "interval": interval(s.success_low, s.success_high), "label": s.label,
         "small": f"{figure(s.episodes)} episodes \u00b7 {s.run}"}
        for s in found
    ]  # fmt: skip
    traces = []
    for where in dict.fromkeys(stage.where for stage in found):
        group = [(k, stage) for k, stage in enumerate(found) if stage.where == where]
        colour, symbol = LOOKS.get(where, OTHER)
        error = {
            "type": "data", "symmetric": False, "color": colour, "thickness": 2.5, "width": 0,
            "array": [(s.success if s.success_high is None else s.success_high) - s.success for _, s in group],
            "arrayminus": [s.success - (s.success if s.success_low is None else s.success_low) for _, s in group],
        }  # fmt: skip
        shown = [text(f"{s.label}: {s.shown}") for _, s in group]
        places = [k for k, _ in group]
        traces.append(markers(where, [s.success for _, s in group], places, colour, symbol, error_x=error, text=shown,
                              hovertemplate="%{text}<extra></extra>"))  # fmt: skip
        traces[-1]["marker"]["size"] = 11
    look = {"x": 0, "showarrow": False, "xanchor": "left", "yshift": 17, "font": {"color": "ink"}}
    names = [look | {"y": k, "text": text(s.label)} for k, s in enumerate(found)]
    forest = chart(
        "Success rate with 95\u202f% Wilson interval", "; ".join(f"{s.label}, {s.where}: {s.shown}" for s in found),
        traces, height=_ROW * len(found) + 70, annotations=names, hovermode="closest",
        xaxis=FRACTION | {"title": "", "range": [-0.02, 1.02], "showgrid": True},
        yaxis={"range": [len(found) - 0.5, -0.75], "visible": False},
    )  # fmt: skip
    return [Block("cards", {"cards": cards}), *charts([forest])]


def evaluations_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return a table of all evaluations."""
    rows = [
        (
            row.get("label") or run.name, run.name, plain(row.get("where")), seed(row.get("seed")),
            figure(row.get("episodes")), percent(row.get("success")),
            interval(row.get("success_low"), row.get("success_high")),
            figure(row.get("steps")), figure(row.get("steps_of_successes")), figure(row.get("action_change")),
            figure(row.get("nonfinite")), duration(row.get("seconds")),
        )
        for run in runs
        for row in run.evaluations
    ]  # fmt: skip
    if not rows:
        return []
    head = ("Policy", "Run", "Where", "First seed", "Episodes", "Success", "95\u202f% interval", "Steps",
            "Steps of successes", "Action change", "Refused actions", "Took")  # fmt: skip
    return [
        table("Every episode is counted once, from the first seed on", head, rows, numbers=range(3, 12)),
        note("Steps are control periods. Action change is the mean absolute change of the action from one control "
             "period to the next, in units of its range [\u22121, 1]: lower is smoother."),
    ]  # fmt: skip


def seed(value: Any) -> str:
    """Format a seed without thousands separators, for copying."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else plain(value)


def measures_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return a table of metrics other than success, such as tracking error or power, for evaluations that have any."""
    found = [(run, row) for run in runs for row in run.evaluations if _measured(row)]
    names = list(dict.fromkeys(name for _, row in found for name in _measured(row)))
    titles = [name.replace("_", " ").capitalize() + (f", {_UNITS[name]}" if name in _UNITS else "") for name in names]
    rows = [
        (row.get("label") or run.name, ", ".join(plain(row[k]) for k in ("where", "engine") if row.get(k)),
         *(_mean(row.get(name)) for name in names))
        for run, row in found
    ]  # fmt: skip
    if not rows:
        return []
    return [
        table("Means over episodes", ("Policy", "Where", *titles), rows, numbers=range(2, len(names) + 2)),
        note("In brackets the 95\u202f% interval of the mean. Errors are distances between what was commanded and "
             "what the robot did, averaged over all control periods, changes of command and pushes included."),
    ]  # fmt: skip


def _measured(row: Row) -> Row:
    return {k: v for k, v in row.items() if isinstance(v, dict) and {"mean", "low", "high"} == set(v)}


def _mean(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    return f"{figure(value.get('mean'))} [{figure(value.get('low'))}, {figure(value.get('high'))}]"


def groups_section(runs: Sequence[RunFolder], key: str, name: str) -> list[Block]:
    """Return a table of success by group of episodes (rows), such as those of an instruction, and evaluation (columns).
    `key`: key of the groups in an evaluation; `name`: heading of their column."""
    rows_of = [(row.get("label") or run.name, _groups(row, key)) for run in runs for row in run.evaluations]
    found = [(label, rates) for label, rates in rows_of if rates]
    if not found:
        return []
    texts = dict.fromkeys(text for _, rates in found for text in sorted(rates))
    rows = [(text, *(_cell(rates.get(text)) for _, rates in found)) for text in sorted(texts)]
    head = (name, *(str(label) for label, _ in found))
    return [
        table("Success, and in brackets the number of episodes", head, rows, numbers=range(1, len(head))),
        note("Few episodes say little: 5 successes in 10 have a 95\u202f% interval of 24\u201376\u202f%."),
    ]


def _groups(row: Row, key: str) -> Row:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _cell(value: object) -> str:
    """Format a success rate with its number of episodes, and errors; empty if `value` contains no rate."""
    if not isinstance(value, dict) or number(value.get("success")) is None:
        return ""
    errors = (f", {figure(value[name])} {unit}" for name, unit in _UNITS.items() if number(value.get(name)) is not None)
    return f"{percent(value['success'], 0)} ({figure(value.get('episodes'))})" + "".join(errors)
