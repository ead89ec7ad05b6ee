"""`robot-rl tasks`, `robots` and `recipes [NAME]`."""

from __future__ import annotations

import inspect
import json
import sys

from robot_rl.util.errors import UnknownName
from robot_rl.util.registry import Registry


def _show(registry: Registry, argv: list[str]) -> int:
    unknown = [a for a in argv if a not in ("--json", "-h", "--help")]
    if unknown:
        raise UnknownName("flag", unknown[0], ["--json", "--help"])
    if "--json" in argv:
        sys.stdout.write(json.dumps({name: registry.describe(name) for name in registry}) + "\n")
    else:
        width = max(len(name) for name in registry)
        sys.stdout.write("".join(f"{name:<{width}}  {registry.describe(name)}\n" for name in registry))
    return 0


def tasks_main(argv: list[str]) -> int:
    """List the tasks; --json prints one object."""
    from sim.tasks import tasks

    return _show(tasks, argv)


def robots_main(argv: list[str]) -> int:
    """List the robots; --json prints one object."""
    from robot_rl.robots import robots

    return _show(robots, argv)


def recipes_main(argv: list[str]) -> int:
    """List the recipes, or print the file of one recipe; --json prints one object."""
    from robot_rl.recipes import recipes

    if len(argv) != 1 or argv[0].startswith("-"):
        return _show(recipes, argv)
    module = sys.modules[recipes.get(argv[0]).__module__]
    sys.stdout.write(inspect.getsource(module))
    return 0
