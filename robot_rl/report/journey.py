"""The head of the report: success at each stage, as figures and as dots with whiskers, and the evaluations behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from robot_rl.report.axes import SHARE
from robot_rl.report.charts import grid, pc, sign
from robot_rl.report.figures import duration, figure, interval, number, percent, plain
from robot_rl.report.folders import Row, RunFolder
from robot_rl.report.markup import Html, join, table, tag

_LOOKS = {"simulation": ("circle", "sim"), "twin": ("diamond", "twin")}
_ROW = 52
"""Height of a stage in the chart, pixels."""


@dataclass(frozen=True)
class Stage:
    """One evaluation on the way."""

    run: str
    label: str
    where: str
    episodes: int
    success: float
    success_low: float | None
    success_high: float | None

    @property
    def look(self) -> tuple[str, str]:
        """Shape and colour: a place is told by both, so neither a black print nor colour blindness hides it."""
        return _LOOKS.get(self.where, ("square", "other"))


def stages(runs: Sequence[RunFolder]) -> list[Stage]:
    """Return every evaluation that states a success rate, in the order of the runs."""
    return [stage for run in runs for row in run.evaluations if (stage := _stage(run, row)) is not None]


def _stage(run: RunFolder, row: Row) -> Stage | None:
    success = number(row.get("success"))
    if success is None or not 0 <= success <= 1:
        return None
    episodes = int(number(row.get("episodes")) or 0)
    low, high = number(row.get("success_low")), number(row.get("success_high"))
    if (low is None or high is None) and episodes > 0:
        from robot_rl.evaluation import wilson  # imports torch, which a complete run folder does without

        low, high = wilson(round(success * episodes), episodes)
    where = row.get("where")
    return Stage(
        run.name, str(row.get("label") or run.name), where if isinstance(where, str) and where else "unknown",
        episodes, success, low, high,
    )  # fmt: skip


def as_json(found: Sequence[Stage]) -> list[dict[str, Any]]:
    """Return stages for --json."""
    return [asdict(stage) for stage in found]


def sentence(found: Sequence[Stage]) -> str:
    """Say what success was in each place that has a few stages with names of their own, in their order."""
    parts = []
    for where in dict.fromkeys(stage.where for stage in found):
        here = [stage for stage in found if stage.where == where]
        place = {"simulation": " in simulation", "twin": " on the twin", "unknown": ""}.get(where, f" on the {where}")
        if 1 < len(here) == len({stage.label for stage in here}) <= 4:
            parts.append(f"success{place}: " + ", then ".join(f"{percent(s.success)} ({s.label})" for s in here))
    said = "; ".join(parts)
    return said[:1].upper() + said[1:] + "." if said else ""


def journey_section(found: Sequence[Stage]) -> Html | None:
    """Return the row of figures and the chart."""
    if not found:
        return None
    cards = [
        tag("li",
            tag("span", _key(stage), stage.where, class_="where"),
            tag("span", percent(stage.success), class_="big"),
            tag("span", interval(stage.success_low, stage.success_high), class_="interval"),
            tag("span", stage.label, class_="label"),
            tag("span", f"{figure(stage.episodes)} episodes \u00b7 {stage.run}", class_="small"))
        for stage in found
    ]  # fmt: skip
    return join([
        tag("ol", cards, class_="journey"),
        whiskers(found),
        tag("p", "Success rate of each stage; the line is its 95\u202f% Wilson interval.", class_="note"),
    ])  # fmt: skip


def whiskers(found: Sequence[Stage]) -> Html:
    """Return the chart of dots and whiskers, one row a stage."""
    n = len(found)
    rows: list[Html] = []
    for i, stage in enumerate(found):
        shape, look = stage.look
        y = pc((i + 0.5) / n)
        name = tag("tspan", _short(stage.label, 32))
        place = tag("tspan", _short(stage.where, 32), x="0", dy="16", class_="axis")
        rows.append(tag("text", name, place, tag("title", stage.label), x="0", y=y, class_="row"))
        if stage.success_low is not None and stage.success_high is not None:
            ends = {"x1": pc(stage.success_low), "x2": pc(stage.success_high)}
            rows.append(tag("line", y1=y, y2=y, class_=f"whisker {look}", **ends))
        said = f"{stage.label}: {percent(stage.success)}, {interval(stage.success_low, stage.success_high)}"
        rows.append(sign(stage.success, (i + 0.5) / n, shape, look, said))
    alt = "Success rate with 95 % interval. " + "; ".join(
        f"{s.label}, {s.where}: {percent(s.success)} ({interval(s.success_low, s.success_high)})" for s in found
    )
    lines = [tag("line", x1=pc(v), x2=pc(v), y1="0", y2="100%", class_="grid") for v, _ in SHARE.ticks]
    drawing = tag("svg", lines, grid(SHARE, None), rows, role="img", aria_label=alt)
    return tag("div", drawing, class_="plot forest", style=f"height:{_ROW * n}px")


def evaluations_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return the evaluations as a table."""
    rows = [
        (
            row.get("label") or run.name, run.name, plain(row.get("where")), _seed(row.get("seed")),
            figure(row.get("episodes")), percent(row.get("success")),
            interval(row.get("success_low"), row.get("success_high")),
            figure(row.get("steps")), figure(row.get("steps_of_successes")), figure(row.get("action_change")),
            figure(row.get("nonfinite")), duration(row.get("seconds")),
        )
        for run in runs
        for row in run.evaluations
    ]  # fmt: skip
    if not rows:
        return None
    head = ("Policy", "Run", "Where", "First seed", "Episodes", "Success", "95\u202f% interval", "Steps",
            "Steps of successes", "Action change", "Refused actions", "Took")  # fmt: skip
    return join([
        table("Every episode counted once, from the first seed on", head, rows, numbers=range(3, 11)),
        tag("p", "Steps are control periods. Action change is the mean absolute change of the action from one control "
            "period to the next, in units of its range [\u22121, 1]: lower is smoother.", class_="note"),
    ])  # fmt: skip


def _key(stage: Stage) -> Html:
    shape, look = stage.look
    return tag("svg", sign(0.5, 0.5, shape, look), class_="key", aria_hidden="true")


def _seed(value: Any) -> str:
    """The seed as written, without thousands separators: people copy it."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else plain(value)


def _short(label: str, most: int) -> str:
    return label if len(label) <= most else label[: most - 1].rstrip() + "\u2026"
