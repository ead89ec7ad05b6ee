"""Progress bars and tables of all commands."""

import math
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from robot_rl.util import strict_json

LEAST = 40
"""Minimum width of the output, columns: with COLUMNS=0, rich would print nothing."""


def printer(stderr: bool = False) -> Console:
    """Return a console for results (stdout) or progress (stderr)."""
    made = Console(stderr=stderr, highlight=False)
    made.width = max(made.width, LEAST)
    return made


console = printer(stderr=True)


@contextmanager
def bar(title: str) -> Iterator[Any]:
    """Show a progress bar, or, without a terminal, a line every 10 s. Yield its update function (done, total, text)."""
    if not console.is_terminal:
        last = [time.monotonic()]

        def line(done: int, total: int, text: str = "") -> None:
            if time.monotonic() - last[0] > 10:
                last[0] = time.monotonic()
                console.print(f"{title} {done}/{total} {text}", soft_wrap=True)

        yield line
        return
    wide = console.width >= 100  # in a narrow terminal, the numbers need the room
    columns = (TextColumn("[bold]{task.description}"), BarColumn(40 if wide else 8), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn()) if wide else (TimeRemainingColumn(),)
    with Progress(*columns, *times, TextColumn("{task.fields[text]}"), console=console) as progress:
        task = progress.add_task(title, total=None, text="")

        def update(done: int, total: int, text: str = "") -> None:
            progress.update(task, completed=min(done, total), total=total, text=text)

        yield update


def say_nominal(engine: str, nominal: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Print on stderr and return the parameters that an engine cannot randomize (`nominal`), except `excluded` ones."""
    names = [name for name in nominal if name not in excluded]
    if names:
        said = f"engine {engine!r} cannot randomize {', '.join(names)}: kept at the nominal value in every episode"
        print(said, file=sys.stderr)  # noqa: T201
    return names


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], left: Collection[str] = ()) -> None:
    """Print a table on stdout; the columns in `left` are aligned to the left, the others to the right."""
    table = Table(title=title, box=None)
    for name in head:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # rich would interpret brackets in a name as markup
    printer().print(table)


def show(result: Mapping[str, Any], as_json: bool, title: str = "") -> None:
    """Print a result as a two-column table or as one JSON object."""
    out = printer()
    if as_json:
        out.out(strict_json.dumps(result), highlight=False)
        return
    table = Table(title=title, box=None, show_header=False)
    for key, value in result.items():
        if isinstance(value, Mapping) and {"mean", "low", "high"} == set(value):
            value = _with_interval(**value)
        elif isinstance(value, Mapping) and key in ("by_instruction", "by_ground"):
            value = "\n".join(f"{text}: {_group(**each)}" for text, each in value.items())
        table.add_row(Text(key), Text(_shown(value), overflow="fold"))
    out.print(table)


def _group(success: float, episodes: int, **errors: float) -> str:
    """Return the results of a group of episodes in one line."""
    means = (f"{name} {_shown(value)}" for name, value in errors.items())
    return ", ".join([f"{_shown(success)} of {episodes}", *means])


def learned(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the steps and training metrics in the last of a run's metric `rows`, under the names that tables show."""
    last = rows[-1] if rows else {}
    names = {
        "train/steps" if "train/steps" in last else "step": "steps", "train/success": "success",
        "train/true_success": "true_success", "train/return": "return", "bc/loss": "loss",
    }  # fmt: skip
    return {shown: last[name] for name, shown in names.items() if last.get(name) is not None}


def show_runs(rows: Sequence[Mapping[str, Any]], as_json: bool, title: str, more: Mapping[str, Any]) -> None:
    """Print a table of runs with their mean in the last line, or one JSON object with the runs, the mean and `more`."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    means = {name: mean for name in names if (mean := _mean(rows, name)) is not None}
    if as_json:
        show({**more, "runs": list(rows), "mean": means}, True)
        return
    shown = [*rows, {"run": "mean"} | means]
    cells = ([_shown(_plain(row[name])) if name in row else "" for name in names] for row in shown)
    print_table(title, names, cells, left=("run", "error"))


def _plain(value: Any) -> Any:
    return value["mean"] if isinstance(value, Mapping) and "mean" in value else value


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of the column `name`; None for seeds, interval bounds and columns that are not numeric."""
    if name == "seed" or name.endswith(("_low", "_high")):
        return None
    values = [_plain(row[name]) for row in rows if name in row]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


def _with_interval(mean: float | None, low: float | None, high: float | None) -> str:
    """Return a mean with its interval, or the mean alone if there is no interval (a single episode)."""
    return _shown(mean) if low is None else f"{_shown(mean)} [{_shown(low)}, {_shown(high)}]"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "?"
    return "?" if value is None else str(value)
