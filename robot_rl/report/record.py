"""Report sections on datasets, randomization, provenance, settings, command loop timing and shield of runs."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from robot_rl.report.charts import Block, chart, charts, facts, heading, line, note, table
from robot_rl.report.figures import ABSENT, duration, figure, interval, number, percent, plain
from robot_rl.report.folders import Row, RunFolder
from robot_rl.util.statistics import wilson


def dataset_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return facts about the demonstrations; a dataset that several runs share is shown once."""
    found = {json.dumps(run.dataset, sort_keys=True): run for run in reversed(runs) if run.dataset}
    return [block for run in reversed(found.values()) for block in (heading(run.name), facts(_dataset(run.dataset)))]


def _dataset(row: Row) -> list[tuple[str, object]]:
    frames, fps, new = (number(row.get(key)) for key in ("frames", "fps", "new_episodes"))
    attempts, success = (number(row.get(key)) for key in ("new_attempts", "success_of_demonstrator"))
    known = {"path", "episodes", "frames", "new_episodes", "new_attempts", "success_of_demonstrator", "fps"}
    demonstrator = percent(success)
    if attempts and success is not None and 0 <= success <= 1 and 1 <= attempts < 1e9:
        span = interval(*wilson(round(success * attempts), int(attempts)))
        demonstrator = f"{demonstrator} ({span}, {figure(attempts)} attempts)"
    return [
        ("path", row.get("path")),
        ("episodes", figure(row.get("episodes"))),
        ("frames", figure(frames)),
        ("episodes of the last command", figure(new) if new != row.get("episodes") else None),
        ("recorded", duration(frames / fps) if frames and fps else None),
        ("frame rate", figure(fps, "Hz")),
        ("demonstrator\u2019s success", demonstrator),
        *((key.replace("_", " "), plain(value)) for key, value in row.items() if key not in known),
    ]


def randomization_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return tables of the randomized parameters with ranges in physical units; runs with equal tables share one."""
    keys = ("parameter", "low", "high", "unit", "distribution")
    groups: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for run in runs:
        if run.randomization:
            rows = tuple(tuple(plain(row.get(key)) for key in keys) for row in run.randomization)
            groups.setdefault(rows, []).append(run.name)
    head = tuple(key.capitalize() for key in keys)
    return [table(", ".join(names), head, rows, numbers=(1, 2)) for rows, names in groups.items()]


def provenance_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return start time, seed, commit and command of each run, then machines, versions and policy bundles."""
    made = [run for run in runs if run.provenance]
    rows = [
        (run.name, plain(run.provenance.get("started")).replace("T", " "), run.setting("seed") or ABSENT,
         _commit(run.provenance), _command(run.provenance))
        for run in made
    ]  # fmt: skip
    blocks = [table("Runs", ("Run", "Started", "Seed", "Commit", "Command"), rows, code=3)] if rows else []
    machines: dict[str, tuple[Row, list[str]]] = {}
    for run in made:
        machine = {key: run.provenance.get(key) for key in ("machine", "python", "versions")}
        machines.setdefault(json.dumps(machine, sort_keys=True), (machine, []))[1].append(run.name)
    for machine, names in machines.values():
        title = "Machine and versions" + (f", {', '.join(names)}" if len(machines) > 1 else "")
        blocks += [heading(title), facts(_machine(machine))]
    bundles = [(run.name, *_bundle(run.bundle)) for run in runs if run.bundle]
    return blocks + ([table("Policy bundles", ("Run", "Policy", "Robot", "Task"), bundles)] if bundles else [])


def _machine(row: Row) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for key, value in row.items():
        items = value.items() if isinstance(value, dict) else [(key, value)] if value else []
        pairs += [(str(name), str(item) if item is not None else None) for name, item in items]
    return pairs


def _bundle(bundle: Row) -> tuple[str, str, str]:
    names: list[str] = []
    policy: Any = bundle.get("policy")
    while isinstance(policy, dict):
        names.append(plain(policy.get("class")))
        policy = policy.get("base")
    robot, interface = bundle.get("robot"), bundle.get("interface")
    return (
        " on ".join(names) or ABSENT,
        plain(robot.get("name")) if isinstance(robot, dict) else ABSENT,
        plain(interface.get("task")) if isinstance(interface, dict) else ABSENT,
    )


def _commit(provenance: Row) -> str:
    name, dash, mark = str(provenance.get("commit") or ABSENT).partition("-")
    return name[:12] + dash + mark


def _command(provenance: Row) -> str:
    command = provenance.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else plain(command)


def settings_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return the complete settings of each run, folded away."""
    return [
        Block("settings", {"name": run.name, "text": json.dumps(run.config, indent=2, ensure_ascii=False)})
        for run in runs
        if run.config
    ]


_GOALS = "goals changed or refused"
_COUNTED = {
    _GOALS: ("nonfinite", "position", "workspace", "collision", "start mismatch"),
    "times it began, however long": ("stop", "stale state", "stale goal", "tilt", "joint speed"),
    "control periods": ("nonfinite action", "operator lost", "stale object", "stale view"),
    "pictures recorded again": ("stale picture",),
}
"""Units of the counts in loop.json; for each unit, the names of its counts."""
_TIMES = {"policy: from observation to action": "inference_ms", "command loop: age of the joint state": "state_age_ms"}


def loop_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return lateness and other times of each run's command loop, and the lateness of a bare loop on its machine."""
    found = [run for run in runs if run.loop]
    if not found:
        return []
    late, times = [], []
    for run in found:
        late.append(_lateness(run.name, run.loop, plain(run.loop.get("learner"))))
        if bare := _part(run.loop, "bare"):
            late.append(_lateness(f"{run.name}, bare loop", bare, ABSENT))
        for name, key in _TIMES.items():
            if part := _part(run.loop, key):
                times.append((run.name, name, *(figure(part.get(k), "ms") for k in ("p50", "p99", "max"))))
    head = ("Loop", "Learner", "Rate", "Ticks", "p50", "p99", "p99.9", "Largest", "Late > 1\u202fms", "Missed", "Drift")
    blocks = [table("Lateness of the ticks of the command loop", head, late, numbers=range(2, 11))]
    blocks += charts(histogram(run) for run in found)
    if times:
        caption = "Times of policy and command loop"
        blocks.append(table(caption, ("Loop", "What", "p50", "p99", "Largest"), times, numbers=(2, 3, 4)))
    return blocks


def _lateness(name: str, loop: Row, learner: str) -> tuple[str, ...]:
    late, ticks = dict(_part(loop, "lateness_us")), number(loop.get("ticks"))
    if ticks is not None and ticks < 1000:
        late.pop("p999", None)  # equals the maximum
    return (
        name, learner, figure(loop.get("rate"), "Hz"), figure(ticks),
        *(figure(late.get(key), "\u00b5s") for key in ("p50", "p99", "p999", "max")),
        percent(loop.get("late_share"), 3), figure(loop.get("missed")), figure(loop.get("drift_us"), "\u00b5s"),
    )  # fmt: skip


def histogram(run: RunFolder) -> dict[str, Any] | None:
    """Return a chart of a run's tick lateness, log scale: bars for the command loop, a line for the bare loop."""
    mine, bare = _fractions(run.loop), _fractions(_part(run.loop, "bare"))
    if mine is None:
        return None
    bins, values, total = mine
    bars = {"type": "bar", "name": "this loop", "x": bins, "y": values, "marker": {"color": "c1"}}
    traces = [bars]
    if bare and bare[0] == bins:
        stairs = line(f"bare loop, {figure(bare[2])} ticks", bins, bare[1], "c2", mode="lines")
        stairs["line"]["shape"] = "hvh"
        traces.append(stairs)
    worst = figure(_part(run.loop, "lateness_us").get("max"), "\u00b5s")
    alt = f"Histogram of the lateness of {figure(total)} ticks of {run.name}; the largest is {worst}"
    # The axis starts below a single tick's fraction: one late tick in a million stays visible.
    y = {"type": "log", "range": [-len(str(int(total))), 0.1], "tickformat": "~%", "hoverformat": ".4~%", "dtick": 1}
    return chart(f"Lateness, {run.name}, fraction of ticks", alt, traces, yaxis=y,
                 xaxis={"title": "\u00b5s", "type": "category"}, bargap=0.1)  # fmt: skip


def _fractions(loop: Row) -> tuple[list[str], list[float], float] | None:
    """Return names of the lateness bins (the last may be open), the fraction of ticks in each, and the tick count."""
    found = _part(loop, "histogram")
    edges, counts = found.get("edges_us"), found.get("counts")
    if not isinstance(edges, list) or not isinstance(counts, list) or not counts:
        return None
    values = [number(count) for count in counts]
    labels = [f"{v:.4g}" if (v := number(edge)) is not None else "\u221e" for edge in edges]
    labels += ["\u221e"] * (len(labels) == len(values))
    if len(labels) != len(values) + 1 or any(v is None or v < 0 for v in values):
        return None
    bins = [f"{a}\u2013{b}" if b != "\u221e" else f"> {a}" for a, b in zip(labels, labels[1:], strict=False)]
    total = sum(v or 0.0 for v in values)
    return (bins, [(v or 0.0) / total for v in values], total) if 0 < total < 1e15 else None


def shield_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return a table of the number of interventions of shield and watchdogs by reason and run."""
    found = [(run, run.loop["shield"]) for run in runs if isinstance(run.loop.get("shield"), dict)]
    if not found:
        return []
    reasons = sorted({reason for _, counts in found for reason in counts})
    if not reasons:
        return [note("The shield changed no command.")]
    units = {reason: unit for unit, known in _COUNTED.items() for reason in known}
    rows = [
        (reason, units.get(reason, ABSENT), *(_count(counts, reason, run) for run, counts in found))
        for reason in reasons
    ]
    head = ("Reason", "What is counted", *(run.name for run, _ in found))
    caption = "How often the shield or a watchdog stepped in; of goals also the fraction of all that were posted"
    return [table(caption, head, rows, numbers=range(2, len(head)))]


def _count(counts: Row, reason: str, run: RunFolder) -> str:
    count, goals = number(counts.get(reason, 0)), number(run.loop.get("goals"))
    share = f" ({percent(count / goals, 2)})" if count and goals and reason in _COUNTED[_GOALS] else ""
    return figure(count) + share


def _part(row: Row, name: str) -> dict[str, Any]:
    value = row.get(name)
    return value if isinstance(value, dict) else {}
