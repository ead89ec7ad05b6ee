"""For the record: dataset, randomization, where and how each run was made, and every setting."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from robot_rl.report.figures import ABSENT, duration, figure, interval, number, percent, plain
from robot_rl.report.folders import Row, RunFolder
from robot_rl.report.markup import Html, facts, join, table, tag


def dataset_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return what the demonstrations are; the same dataset named by several runs is shown once."""
    parts: list[object] = []
    seen: list[Row] = []
    for run in runs:
        if run.dataset and run.dataset not in seen:
            seen.append(run.dataset)
            parts += [tag("h3", run.name), facts(_dataset(run.dataset))]
    return join(parts) if parts else None


def _dataset(row: Row) -> list[tuple[str, object]]:
    frames, fps = number(row.get("frames")), number(row.get("fps"))
    new, attempts, success = (
        number(row.get("new_episodes")),
        number(row.get("new_attempts")),
        number(row.get("success_of_demonstrator")),
    )
    known = {"path", "episodes", "frames", "new_episodes", "new_attempts", "success_of_demonstrator", "fps"}
    demonstrator: object = percent(success) if success is not None else None
    if attempts and success is not None and 0 <= success <= 1 and 1 <= attempts < 1e9:
        from robot_rl.evaluation import (
            wilson,
        )  # imports torch, which a report without demonstrations does without

        span = interval(*wilson(round(success * attempts), int(attempts)))
        demonstrator = [
            percent(success),
            " ",
            tag("span", f"({span}, {figure(attempts)} attempts)", class_="small"),
        ]
    return [
        ("path", tag("code", row["path"]) if row.get("path") else None),
        ("episodes", figure(row["episodes"]) if "episodes" in row else None),
        ("frames", figure(frames) if frames is not None else None),
        ("episodes of the last command", figure(new) if new is not None and new != row.get("episodes") else None),
        ("recorded", duration(frames / fps) if frames and fps else None),
        ("frame rate", figure(fps, "Hz") if fps else None),
        ("demonstrator\u2019s success", demonstrator),
        *((key.replace("_", " "), plain(value)) for key, value in row.items() if key not in known),
    ]


def randomization_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return what was randomized, with ranges in physical units; equal tables are shown once."""
    groups: list[tuple[list[Row], list[str]]] = []
    for run in runs:
        if run.randomization:
            for rows, names in groups:
                if rows == run.randomization:
                    names.append(run.name)
                    break
            else:
                groups.append((run.randomization, [run.name]))
    head = ("Parameter", "Low", "High", "Unit", "Distribution")
    tables = [
        table(", ".join(names), head, [
            (plain(row.get("parameter")), *(plain(row.get(key)) for key in ("low", "high", "unit", "distribution")))
            for row in rows
        ], numbers=(1, 2))
        for rows, names in groups
    ]  # fmt: skip
    return join(tables) if tables else None


def provenance_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return when, from which commit and seed, by which command, on which machine and with which versions."""
    told = [run for run in runs if run.provenance]
    if not told and not any(run.bundle for run in runs):
        return None
    rows = [
        (run.name, plain(run.provenance.get("started")).replace("T", " "), _seed(run),
         tag("code", _commit(run.provenance)), tag("code", _command(run.provenance), class_="command"))
        for run in told
    ]  # fmt: skip
    machines: dict[str, tuple[Row, list[str]]] = {}
    for run in told:
        here = {key: run.provenance.get(key) for key in ("machine", "python", "versions")}
        machines.setdefault(json.dumps(here, sort_keys=True), (here, []))[1].append(run.name)
    parts: list[object] = []
    if rows:
        parts.append(table("Runs", ("Run", "Started", "Seed", "Commit", "Command"), rows))
    for here, names in machines.values():
        title = "Machine and versions" + (f", {', '.join(names)}" if len(machines) > 1 else "")
        parts += [tag("h3", title), facts(_machine(here))]
    bundles = [(run.name, *_bundle(run.bundle)) for run in runs if run.bundle]
    if bundles:
        parts.append(table("Policy bundles", ("Run", "Policy", "Robot", "Task"), bundles))
    return join(parts)


def _machine(here: Row) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for key in ("machine", "versions"):
        value = here.get(key)
        named = value.items() if isinstance(value, dict) else [(key, value)] if value else []
        pairs += [(str(name), str(item) if item is not None else None) for name, item in named]
        if key == "machine" and here.get("python"):
            pairs.append(("python", str(here["python"])))
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


def _seed(run: RunFolder) -> str:
    """The seed as written, without thousands separators: people copy it."""
    return run.setting("seed") or ABSENT


def _commit(provenance: Row) -> str:
    commit = str(provenance.get("commit") or ABSENT)
    name, dash, mark = commit.partition("-")
    return name[:12] + dash + mark


def _command(provenance: Row) -> str:
    command = provenance.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else plain(command)


def configurations_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return every resolved configuration, folded away."""
    parts = [
        tag("details", tag("summary", run.name), tag("pre", _pretty(run.config), tabindex=0))
        for run in runs
        if run.config
    ]
    return join(parts) if parts else None


def _pretty(config: Row) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False)
