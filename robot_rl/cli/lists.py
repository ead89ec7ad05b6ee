"""`robot-rl tasks`, `robots` and `recipes [NAME]`: list what is registered, or print a recipe."""

import inspect
import json
import sys
from collections.abc import Mapping
from types import MappingProxyType

from robot_rl.util.errors import UnknownName
from robot_rl.util.registry import Registry


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
    """List the tasks; --json prints one object."""
    from sim.tasks import TESTBED, tasks
    from sim.testbeds import testbeds

    return _show(argv, tasks, {f"{TESTBED}{name}": testbeds.describe(name) for name in testbeds})


def robots_main(argv: list[str]) -> int:
    """List the robots; --json prints one object."""
    from robot_rl.robots import robots

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
