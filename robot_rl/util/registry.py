"""Small registries that hold module paths, so that listing names imports nothing heavy."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from robot_rl.util.errors import Misfit, UnknownName, nearest


def load(path: str, what: str) -> Any:
    """Import what `module:attribute` names; `what` begins the sentence that says in which file it is not as it must be.

    What a module refuses while it is imported (a wrong name, number or setting) is said with the module's file.
    """
    module, _, attribute = path.partition(":")
    try:
        found = importlib.import_module(module)
    except (Misfit, UnknownName, ValueError, SyntaxError, AttributeError, TypeError, NameError) as error:
        raise Misfit(f"{what} in {_file(module)}: {error}") from error
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise Misfit(f"{what} is registered in {module}, which cannot be found") from None
    if not hasattr(found, attribute):
        public = [name for name in vars(found) if not name.startswith("_")]
        raise Misfit(f"{what} in {_file(module)}: it has no {attribute!r}; {nearest(attribute, public)}")
    return getattr(found, attribute)


def _file(module: str) -> str:
    spec = importlib.util.find_spec(module)
    return spec.origin if spec and spec.origin else module


@dataclass
class Registry:
    """Names of one kind of thing, each with a `module:attribute` path and a line for lists.

    >>> tasks = Registry("task", {"panda-lift": ("sim.tasks.panda_lift:TASK", "lift a cube")})
    >>> tasks.get("panda-lift")            # imports sim.tasks.panda_lift only now
    """

    kind: str
    entries: dict[str, tuple[str, str]] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Import and return the named entry; raises UnknownName with the nearest names, or Misfit with the file."""
        if name not in self.entries:
            raise UnknownName(self.kind, name, self.entries)
        return load(self.entries[name][0], f"{self.kind} {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.entries))

    def describe(self, name: str) -> str:
        return self.entries[name][1]
