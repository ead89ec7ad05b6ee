"""Compare policies on held-out episodes: intervals over seeds and episodes, and differences to the first policy.

The page has a table of differences, and learning curves as mean and range over seeds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.report.charts import POINTS, Block, Trace, line, note, table, text
from robot_rl.report.figures import ABSENT, figure, percent
from robot_rl.report.folders import Row, RunFolder, read_folder, read_json, runs_in
from robot_rl.report.page import Section, assemble, write_page
from robot_rl.report.training import NAMES, curve_points, metric_charts, panel
from robot_rl.training.run import SEED
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.statistics import Difference, Outcomes, difference, estimate

TRAINING = "training "
"""First word of a figure that is averaged over the steps of the training."""


@dataclass
class RunGroup:
    """Arm of a comparison: evaluated runs of one recipe with different seeds."""

    name: str
    task: str
    recipe: str
    runs: list[RunFolder]
    evaluations: list[Row]
    """Content of evaluation.json for each run."""

    @property
    def seeds(self) -> list[str]:
        """Return the training seed of each run; "" for policies without training."""
        return [_seed(run) for run in self.runs]

    @property
    def episodes(self) -> list[tuple[Any, Any]]:
        """Return the first held-out seed and the number of episodes of each run."""
        return [(row.get("seed"), row.get("episodes")) for row in self.evaluations]

    def outcomes(self, figure: str) -> Outcomes:
        """Return a figure's values per episode (E,) for each run; the mean (1,) over the training's steps for a figure
        that begins with "training". Raises ConfigError if a run lacks the figure."""
        if figure.startswith(TRAINING):
            return [self._curve_mean(run, figure.removeprefix(TRAINING)) for run in self.runs]
        found = []
        for run, row in zip(self.runs, self.evaluations, strict=True):
            values = row["per_episode"].get(figure)
            if values is None:
                raise ConfigError(
                    f"{run.path} has no figure {figure!r}; it measured {', '.join(row['per_episode'])}: name one with "
                    "--figure"
                )
            found.append(np.array([np.nan if v is None else float(v) for v in values]))
            if not np.isfinite(found[-1]).any():
                raise UserError(f"{run.path}: no episode has a finite {figure}; it cannot be compared")
        return found


    def _curve_mean(self, run: RunFolder, figure: str) -> np.ndarray:
        points = np.array(curve_points(run.metrics, f"train/{figure}")[0])
        if len(points) < 2:
            raise ConfigError(f"{run.path} logged no {figure} while training; name another --figure")
        steps, values = points[:, 0], points[:, 2]
        return np.array([np.trapezoid(values, steps) / (steps[-1] - steps[0])])


def read_arms(paths: Sequence[Path]) -> list[RunGroup]:
    """Read the arms of a comparison: each path is a run folder, or a folder of runs with different seeds."""
    found = [(path, runs_in(path)) for path in paths]
    arms = [read_arm(path, runs[:1] if runs[0] == path else runs) for path, runs in found]
    names = [arm.name for arm in arms]
    for arm, path in zip(arms, paths, strict=True):
        arm.name = arm.name if names.count(arm.name) == 1 else str(path)
    return same_task(arms)


def same_task(arms: list[RunGroup]) -> list[RunGroup]:
    """Return the arms. Raises ConfigError if a run has not been evaluated, or if the tasks differ."""
    missing = [run.path for arm in arms for run, row in zip(arm.runs, arm.evaluations, strict=True) if not row]
    if missing:
        more = f", nor have {len(missing) - 1} more runs" if len(missing) > 1 else ""
        raise ConfigError(
            f"{missing[0]} has no evaluation.json with outcomes by episode{more}; make them with "
            f"`robot-rl evaluate {' '.join(map(str, missing))}`"
        )
    names = {arm.task: arm.name for arm in arms}
    if len(names) > 1:
        said = ", ".join(f"{name} is of {task or 'no known task'}" for task, name in names.items())
        raise ConfigError(f"runs of different tasks cannot be compared: {said}; name runs of one task")
    return arms


def read_arm(path: Path, folders: Sequence[Path]) -> RunGroup:
    """Read runs of one recipe as an arm, sorted by seed. Raises ConfigError if tasks or recipes differ."""
    runs = [read_folder(run) for run in folders]
    runs.sort(key=lambda run: (int(seed) if (seed := _seed(run)).isdecimal() else -1, run.name))
    rows = [read_json(run.path / "evaluation.json", dict, []) for run in runs]
    rows = [row if isinstance(row.get("per_episode"), dict) else {} for row in rows]
    tasks = dict.fromkeys(run.setting("task") or str(row.get("task", "")) for run, row in zip(runs, rows, strict=True))
    recipes = dict.fromkeys(run.setting("recipe") for run in runs)
    if len(tasks) > 1 or len(recipes) > 1:
        what = f"recipes ({', '.join(recipes)})" if len(tasks) == 1 else f"tasks ({', '.join(tasks)})"
        raise ConfigError(f"{path} holds runs of different {what}; name its run folders one by one")
    return RunGroup(path.resolve().name, next(iter(tasks)), next(iter(recipes)), runs, rows)


def _seed(run: RunFolder) -> str:
    return run.setting("seed") or (run.name.removeprefix(SEED) if run.name.startswith(SEED) else "")


def pairing(first: RunGroup, other: RunGroup) -> str:
    """Return the reason why two arms cannot be paired by episode; empty if they can be paired."""
    if max(len(first.runs), len(other.runs)) > 1 and first.seeds != other.seeds:
        one, two = (", ".join(filter(None, arm.seeds)) or "none" for arm in (first, other))
        return f"their seeds differ: {one} and {two}"
    if first.episodes == other.episodes:
        return ""
    if {seed for seed, _ in first.episodes} == {seed for seed, _ in other.episodes}:
        return "they were evaluated on different numbers of episodes"
    return "they were evaluated on other episodes, by another --seed of evaluate"


def compare(arms: Sequence[RunGroup], figure: str = "") -> dict[str, Any]:
    """Return a figure of each arm and its difference to the first arm, with 95 % intervals.

    Args:
        figure: success, return, or a metric of the task; with "training " before it, its mean over the steps of the
            training, which is larger for a method that learns sooner. Empty: success if all runs report it, else
            return.
    """
    reported = all("success" in row["per_episode"] for arm in arms for row in arm.evaluations)
    figure = figure or ("success" if reported else "return")
    rate, notes, rows = figure == "success", [], []
    for arm in arms:
        outcomes = arm.outcomes(figure)
        row: dict[str, Any] = {"arm": arm.name, "recipe": arm.recipe, "seeds": arm.seeds}
        row |= {"episodes": sum(map(len, outcomes))} | asdict(estimate(outcomes, rate))
        row |= {"per_seed": [float(np.nanmean(x)) for x in outcomes]}
        if arm is not arms[0]:
            if reason := pairing(arms[0], arm):
                notes.append(f"{arm.name} and {arms[0].name} are not paired: {reason}")
            found = difference(arms[0].outcomes(figure), outcomes, not reason, rate)
            row["difference"] = asdict(found) | {"decided": found.decided, "says": says(found)}
        rows.append(row)
    if any(len(arm.runs) == 1 and arm.recipe for arm in arms):
        notes.append("intervals of a single seed say nothing about other seeds")
    return {"task": arms[0].task, "figure": figure, "arms": rows, "notes": notes}


def says(found: Difference) -> str:
    """Return a verdict on a difference: higher, lower, or not decided, with the number of episodes or seeds to add."""
    if found.decided:
        return "higher" if found.mean > 0 else "lower"
    more = [f"{found.more_episodes} more episodes per seed"] if found.more_episodes is not None else []
    more += [f"{found.more_seeds} more seed{'s' * (found.more_seeds > 1)}"] if found.more_seeds is not None else []
    return "not decided; " + (f"about {' or '.join(more)} would" if more else "no difference to be seen")


HEAD = ("Arm", "Recipe", "Seeds", "Episodes", "Mean", "Difference", "Decided")
"""Columns of the comparison's table; brackets contain 95 % intervals."""


def write_comparison(arms: Sequence[RunGroup], result: dict[str, Any], out: Path) -> None:
    """Write the result of `compare` as one self-contained HTML file."""
    rows = table_rows(result)
    notes = ["Intervals by a two-level bootstrap over seeds and episodes; Wilson or Student\u2019s t for one seed"]
    lines = [note(f"{said[:1].upper()}{said[1:]}.") for said in (*notes, *(n.rstrip(".") for n in result["notes"]))]
    best = result["arms"][-1].get("difference")
    lead = f"{result['arms'][-1]['arm']} against {result['arms'][0]['arm']}: {best['says']}." if best else ""
    where = "" if result["figure"].startswith(TRAINING) else " on held-out episodes"
    sections: list[Section] = [
        ("comparison", f"{result['figure'].capitalize()}{where}",
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
    """Return traces of a metric's mean and, for several seeds, range over the seeds; [] if a seed lacks the metric.

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
    clocks = _clocks(steps, minutes, timed)
    curve = line(name, [], _short(values.mean(0)), colour, clocks=clocks, legendgroup=text(name))
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
