"""What a task measures besides success: tracking, slip, power and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robot_rl.report.figures import figure
from robot_rl.report.folders import RunFolder
from robot_rl.report.markup import Html, join, table, tag

_UNITS = {
    "velocity_error": "m/s", "yaw_error": "rad/s", "foot_slip": "m/s", "swing_height": "m", "air_time": "s",
    "power": "W", "base_height": "m",
}  # fmt: skip


def measures_section(runs: Sequence[RunFolder]) -> Html | None:
    """Return a table with a row for each evaluation that measured something."""
    found = [(run, row) for run in runs for row in run.evaluations if _measured(row)]
    if not found:
        return None
    names = list(dict.fromkeys(name for _, row in found for name in _measured(row)))
    head = ("Policy", "Where", *(_title(name) for name in names))
    rows = [
        (row.get("label") or run.name, _where(row), *(_interval(row.get(name)) for name in names))
        for run, row in found
    ]  # fmt: skip
    return join([
        table("Means over episodes", head, rows, numbers=range(2, len(head))),
        tag("p", "In brackets the 95\u202f% interval of the mean. Errors are distances between what was commanded and "
            "what the robot did, averaged over all control periods, changes of command and pushes included.",
            class_="note"),
    ])  # fmt: skip


def _measured(row: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {k: v for k, v in row.items() if isinstance(v, dict) and {"mean", "low", "high"} == set(v)}


def _title(name: str) -> str:
    title = name.replace("_", " ").capitalize()
    return f"{title}, {_UNITS[name]}" if name in _UNITS else title


def _where(row: dict[str, Any]) -> str:
    engine = row.get("engine")
    return f"{row.get('where', 'unknown')}" + (f", {engine}" if engine else "")


def _interval(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    return f"{figure(value['mean'])} [{figure(value['low'])}, {figure(value['high'])}]"
