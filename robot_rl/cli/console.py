"""Progress bars and tables of all commands."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from robot_rl.util import strict_json

LEAST = 40
"""Columns for which text is laid out at least, whatever COLUMNS says: with 0, nothing at all would be printed."""


def printer(stderr: bool = False) -> Console:
    """Return what prints results on stdout, or progress on stderr."""
    made = Console(stderr=stderr, highlight=False)
    if made.width < LEAST:
        made.width = LEAST
    return made


console = printer(stderr=True)


@contextmanager
def bar(title: str) -> Iterator[Any]:
    """Show a progress bar, or a line every 10 s without a terminal; yield a function of (done, total, text)."""
    if not console.is_terminal:
        last = [time.monotonic()]

        def line(done: int, total: int, text: str = "") -> None:
            if time.monotonic() - last[0] > 10:
                last[0] = time.monotonic()
                console.print(f"{title} {done}/{total} {text}", soft_wrap=True)

        yield line
        return
    wide = console.width >= 100  # a narrow terminal needs the room for the numbers
    columns = (TextColumn("[bold]{task.description}"), BarColumn(40 if wide else 8), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn()) if wide else (TimeRemainingColumn(),)
    with Progress(*columns, *times, TextColumn("{task.fields[text]}"), console=console) as progress:
        task = progress.add_task(title, total=None, text="")

        def update(done: int, total: int, text: str = "") -> None:
            progress.update(task, completed=min(done, total), total=total, text=text)

        yield update


def say_nominal(engine: str, names: Sequence[str]) -> None:
    """Print on stderr which parameters an engine keeps at their nominal values."""
    if names:
        print(  # noqa: T201
            f"engine {engine!r} cannot randomize {', '.join(names)}: kept at the nominal value in every episode",
            file=sys.stderr,
        )


def show(result: Mapping[str, Any], as_json: bool, title: str = "") -> None:
    """Print a result as a table of two columns, or as one JSON object."""
    out = printer()
    if as_json:
        out.out(strict_json.dumps(result), highlight=False)
        return
    table = Table(title=title, box=None, show_header=False)
    for key, value in result.items():
        if isinstance(value, Mapping) and {"mean", "low", "high"} == set(value):
            value = _with_interval(**value)
        elif isinstance(value, Mapping) and key == "by_instruction":
            value = "\n".join(f"{text}: {_shown(v['success'])} of {v['episodes']}" for text, v in value.items())
        table.add_row(Text(key), Text(_shown(value), overflow="fold"))  # rich would take brackets in a name for markup
    out.print(table)


def learned(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return steps and training metrics from the last row."""
    last = rows[-1] if rows else {}
    names = {
        "train/steps" if "train/steps" in last else "step": "steps",
        "train/success": "success",
        "train/true_success": "true_success",
        "train/return": "return",
        "bc/loss": "loss",
    }
    return {shown: last[name] for name, shown in names.items() if last.get(name) is not None}


def show_runs(rows: Sequence[Mapping[str, Any]], as_json: bool, title: str, more: Mapping[str, Any]) -> None:
    """Print a table with a line per run and their mean, or one JSON object with `more` in it."""
    means = {name: mean for name in _columns(rows) if (mean := _mean(rows, name)) is not None}
    if as_json:
        show({**more, "runs": list(rows), "mean": means}, True)
        return
    out, table = printer(), Table(title=title, box=None)
    names = _columns(rows)
    for name in names:
        table.add_column(name, justify="left" if name in ("run", "error") else "right", overflow="fold")
    for row in [*rows, {"run": "mean"} | means]:
        table.add_row(*(Text(_shown(_plain(row[name])) if name in row else "") for name in names))
    out.print(table)


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _plain(value: Any) -> Any:
    return value["mean"] if isinstance(value, Mapping) and "mean" in value else value


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a column of numbers; None for another, and where a mean has no meaning."""
    if name == "seed" or name.endswith(("_low", "_high")):
        return None
    values = [_plain(row[name]) for row in rows if name in row]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def _with_interval(mean: float | None, low: float | None, high: float | None) -> str:
    """Return a mean with its interval, which a single episode does not have."""
    return _shown(mean) if low is None else f"{_shown(mean)} [{_shown(low)}, {_shown(high)}]"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "?"
    return "?" if value is None else str(value)
