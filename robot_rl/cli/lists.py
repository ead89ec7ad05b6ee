"""`robot-rl tasks`, `robots` and `recipes`."""

from __future__ import annotations

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
    """List the recipes; --json prints one object."""
    from robot_rl.recipes import recipes

    return _show(recipes, argv)
