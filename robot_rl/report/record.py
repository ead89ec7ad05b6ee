"""Sections on datasets, randomization, provenance and settings of runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from robot_rl.report.charts import Block, facts, heading, table
from robot_rl.report.figures import ABSENT, duration, figure, interval, number, percent, plain
from robot_rl.report.folders import Row, RunFolder
from robot_rl.util.statistics import wilson


def dataset_section(runs: Sequence[RunFolder]) -> list[Block]:
    """Return facts about the demonstrations; a dataset of several runs is shown once."""
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
    """Return tables of the randomized parameters with ranges in physical units; equal tables are shown once."""
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
