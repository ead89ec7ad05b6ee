"""Small registries that hold module paths, so that listing names imports nothing heavy."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from robot_rl.errors import Misfit, UnknownName


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
        module, attribute = self.entries[name][0].split(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ValueError, SyntaxError, AttributeError) as error:
            spec = importlib.util.find_spec(module)
            raise Misfit(f"{self.kind} {name!r} in {spec.origin if spec else module}: {error}") from error
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise Misfit(f"{self.kind} {name!r} is registered in {module}, which cannot be found") from None

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.entries))

    def describe(self, name: str) -> str:
        return self.entries[name][1]
