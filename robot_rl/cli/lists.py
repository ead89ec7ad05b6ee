"""`robot-rl tasks`, `robots` and `recipes [NAME]`: list what is registered, or print a recipe."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UnknownName
from robot_rl.util.registry import Registry

if TYPE_CHECKING:
    from sim.tasks.base import Task


def _show(argv: list[str], registry: Registry, more: Mapping[str, str] = MappingProxyType({})) -> int:
    """Print each name with its description: the registry's entries, then `more`."""
    unknown = [a for a in argv if a not in ("--json", "-h", "--help")]
    if unknown:
        raise UnknownName("flag", unknown[0], ["--json", "--help"])
    lines = {name: registry.describe(name) for name in registry} | dict(more)
    if "--json" in argv:
        sys.stdout.write(json.dumps(lines) + "\n")
    else:
        width = max(map(len, lines))
        sys.stdout.write("".join(f"{name:<{width}}  {line}\n" for name, line in lines.items()))
    return 0


def tasks_main(argv: list[str]) -> int:
    """List the tasks; TASK --randomization: list its randomized parameters; --json prints one object."""
    from sim.tasks import TESTBED, tasks
    from sim.testbeds import testbeds

    if "--randomization" in argv:
        named = [word for word in argv if word not in ("--randomization", "--json")]
        if len(named) != 1:
            raise ConfigError("name one task: robot-rl tasks TASK --randomization")
        return _show_ranges(tasks.get(named[0]), "--json" in argv)
    return _show(argv, tasks, {f"{TESTBED}{name}": testbeds.describe(name) for name in testbeds})


def _show_ranges(task: Task, as_json: bool) -> int:
    """Print the ranges of a task, then the names of the parameters that are not randomized."""
    from sim.parameters import parameters
    from sim.randomization.ranges import table

    rows = table(task)
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    head = ("parameter", "low", "high", "unit", "nominal", "distribution", "owner", "acts")
    cells: list[tuple[str, ...]] = [head]
    for row in rows:
        nominal = "model" if row["nominal"] is None else f"{row['nominal']:g}"
        shown = row | {"low": f"{row['low']:g}", "high": f"{row['high']:g}", "nominal": nominal}
        cells.append(tuple(str(shown[name]) for name in head))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        sys.stdout.write("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() + "\n")
    known, drawn = parameters(robots.get(task.interface.robot), task.scene), {row["parameter"] for row in rows}
    sys.stdout.write(f"not randomized: {', '.join(name for name in known if name not in drawn)}\n")
    return 0


def robots_main(argv: list[str]) -> int:
    """List the robots; --json prints one object."""
    return _show(argv, robots)


def recipes_main(argv: list[str]) -> int:
    """List the recipes, or print the module docstring and class source of a named recipe; --json prints one object."""
    from robot_rl.recipes import recipes

    if len(argv) != 1 or argv[0].startswith("-"):
        return _show(argv, recipes)
    recipe = recipes.get(argv[0])
    kinds = [kind for kind in reversed(recipe.__mro__) if kind.__module__ == recipe.__module__]
    intro = inspect.getdoc(sys.modules[recipe.__module__]) or recipe.__module__
    sys.stdout.write("\n\n".join([intro, *map(inspect.getsource, kinds)]))
    return 0
