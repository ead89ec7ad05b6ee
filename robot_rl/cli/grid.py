"""`robot-rl evaluate --grid`: a policy's success over the values of randomized parameters, as a heat map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robot_rl.util.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from robot_rl.cli.evaluate import Evaluate
    from sim.randomization import Randomize

ALL = "randomization"
"""Value of --grid that stands for each randomized parameter by itself."""
QUANTILES = "share of the range"
"""Name of the columns of that grid."""


class Grid:
    """Cells of a grid: rows and columns by name, and the constant values of parameters in each cell."""

    def __init__(self, randomization: tuple[Randomize, ...], names: tuple[str, ...], cells: int):
        """`names`: (ALL,), or two parameters; `cells`: number of values of each parameter."""
        import numpy as np

        ranges = {r.parameter: r for r in randomization if r.low < r.high}
        if not ranges:
            raise ConfigError("--grid: nothing is randomized in this task, or without it; leave out --grid")
        if names != (ALL,) and len(set(names)) != 2:
            raise ConfigError(f"--grid is {' '.join(names)!r}; write --grid {ALL}, or two names of parameters")
        for name in names if names != (ALL,) else ():
            if name not in ranges:
                raise UnknownName("randomized parameter", name, ranges)
        shares = np.linspace(0.0, 1.0, cells)
        at = {name: [float(v) for v in r.quantile(shares)] for name, r in ranges.items()}
        if names == (ALL,):
            self.rows, self.columns, self.axes = list(ranges), [f"{share:.0%}" for share in shares], ("", QUANTILES)
            self.values = [[{name: value} for value in at[name]] for name in ranges]
        else:
            first, second = names
            units = [f"{name}, {ranges[name].unit}" for name in names]
            self.rows, self.columns = ([f"{v:.4g}" for v in at[name]] for name in names)
            self.axes = (units[0], units[1])
            self.values = [[{first: a, second: b} for b in at[second]] for a in at[first]]

    def __iter__(self) -> Iterator[dict[str, float]]:
        return (cell for row in self.values for cell in row)

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)


def measure(
    policy: Any, env: Any, grid: Grid, episodes: int, seed: int, progress: Callable[[int, int], None], **how: Any
) -> dict[str, Any]:
    """Return the results of `episodes` episodes in each cell, with the same seeds in all: rows, columns, cells, and the
    worst cell. All other parameters are drawn as usual. `how`: further arguments of `evaluate`."""
    from robot_rl.evaluation import evaluate

    whole = {r.parameter: (r.low, r.high) for r in env.randomization}
    cells: list[dict[str, Any]] = []
    for number, values in enumerate(grid):
        env.set_ranges(whole | {name: (value, value) for name, value in values.items()})
        found = evaluate(policy, env, episodes, seed, **how).summary()
        kept = {key: found[key] for key in ("success", "success_low", "success_high", "return") if key in found}
        cells.append({"values": values} | kept | {key: found[key] for key in found if key.endswith("_error")})
        progress(number + 1, len(grid))
    env.set_ranges(whole)
    worst = min(cells, key=lambda cell: value_of(cell, figures(cells)[0]))
    return {"rows": grid.rows, "columns": grid.columns, "axes": grid.axes, "cells": cells, "worst": worst}


def figures(cells: list[dict[str, Any]]) -> list[str]:
    """Return the measured figures, first success, or the return of a task that reports no success."""
    first = [key for key in ("success", "return") if key in cells[0]][:1]
    return first + [key for key in cells[0] if key.endswith("_error")]


def value_of(cell: dict[str, Any], figure: str) -> float:
    """Return the mean of a figure in a cell."""
    value = cell[figure]
    return float(value["mean"] if isinstance(value, dict) else value)


def said(cell: dict[str, Any], figure: str) -> str:
    """Return a cell's figure with its interval, and its values of parameters."""
    value, low, high = (
        (cell[figure][key] for key in ("mean", "low", "high"))
        if isinstance(cell[figure], dict)
        else (cell[figure], cell[f"{figure}_low"], cell[f"{figure}_high"])
    )
    where = ", ".join(f"{name} = {v:.4g}" for name, v in cell["values"].items())
    return f"{figure} {value:.3g} [{low:.3g}, {high:.3g}] at {where}"


def in_rows(result: dict[str, Any], value: Callable[[dict[str, Any]], Any]) -> list[list[Any]]:
    """Return a value of every cell, in the grid's rows."""
    width, flat = len(result["columns"]), [value(cell) for cell in result["cells"]]
    return [flat[start : start + width] for start in range(0, len(flat), width)]


def draw(result: dict[str, Any], title: str, file: Path) -> None:
    """Write a page with a heat map of each figure."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    from robot_rl.util.files import replace_file

    names = figures(result["cells"])
    page = make_subplots(len(names), 1, subplot_titles=names, vertical_spacing=0.15 / len(names))
    for k, name in enumerate(names):
        rows = in_rows(result, partial(value_of, figure=name))
        texts = in_rows(result, lambda cell: ", ".join(f"{n} {v:.4g}" for n, v in cell["values"].items()))
        heat = go.Heatmap(
            z=rows, x=result["columns"], y=result["rows"], text=texts, texttemplate="%{z:.2f}",
            hovertemplate="%{text}: %{z:.3g}<extra></extra>", colorscale="RdYlGn" if k == 0 else "RdYlGn_r",
            zmin=0 if name == "success" else None, zmax=1 if name == "success" else None, showscale=False,
        )  # fmt: skip
        page.add_trace(heat, row=k + 1, col=1)
        page.update_xaxes(title=result["axes"][1], type="category", row=k + 1, col=1)
        page.update_yaxes(title=result["axes"][0], type="category", autorange="reversed", row=k + 1, col=1)
    height = 160 + (80 + 32 * len(result["rows"])) * len(names)
    page.update_layout(title=f"{title}; worst: {said(result['worst'], names[0])}", height=height)
    replace_file(file, page.to_html(include_plotlyjs=True).encode())


def measure_grid(
    command: Evaluate, policy: Any, env: Any, execution: Any, label: str, keep: Callable[[Any], None],
    out: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Measure a policy in every cell of --grid, `keep` the result, draw it beside `out`, show and return it."""
    from robot_rl.cli.console import bar, print_table, show

    if command.video:
        raise ConfigError("--video films one evaluation, not a grid; leave out --grid or --video")
    cells = Grid(getattr(env, "randomization", ()), command.grid, command.cells)
    with bar("grid") as update:
        result = measure(
            policy, env, cells, command.episodes, command.seed, lambda done, total: update(done, total, "cells"),
            execution=execution,
        )  # fmt: skip
    env.close()
    result |= {"label": label, "seed": command.seed, "episodes": command.episodes}
    keep(result)
    if out:
        draw(result, f"{label}: {env.info.task}", out.with_suffix(".html"))
    if command.json:
        show(result, True)
        return result
    figure = figures(result["cells"])[0]
    values = in_rows(result, lambda cell: f"{value_of(cell, figure):.2f}")
    rows = [(name, *row) for name, row in zip(result["rows"], values, strict=True)]
    down, across = result["axes"]
    print_table(f"{figure}, {command.episodes} episodes a cell", (down, *result["columns"]), rows, left=(down,))
    print(f"columns: {across}\nworst cell: {said(result['worst'], figure)}")  # noqa: T201
    return result
