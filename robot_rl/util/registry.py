"""Registries of tasks, robots, recipes, engines, terms and tests: names of the project, of packages, or import paths.

A name is looked up in the project's own table first, then among the entry points of installed packages in the
registry's group:

    [project.entry-points."robot_rl.tasks"]
    drawer = "my_lab.drawer:TASK"

Any other name with a colon is an import path, `my_lab.drawer:TASK`. Listing names does not import anything.

`get` imports any path that a user gives. Names from files (a bundle, a run's config.json) must pass `vet` first, which
admits modules of trusted packages only. Trusted are our packages, installed packages with an entry point in a
`robot_rl.` group, packages that this process has imported by path, and packages listed in the environment variable
ROBOT_RL_IMPORTS, which child processes inherit.
"""

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from robot_rl.util.errors import ConfigError, UnknownName, UserError, nearest
from robot_rl.util.fields import explain


def load(path: str, what: str) -> Any:
    """Import and return the object at `module:attribute`; error messages start with `what` and name the file.

    Raises:
        ConfigError: the module or attribute is missing, or the module raises an error.
    """
    module, _, attribute = path.partition(":")
    try:
        found = importlib.import_module(module)
    except (ConfigError, UnknownName, ValueError, SyntaxError, AttributeError, TypeError, NameError) as error:
        raise ConfigError(f"{what} in {_file(module)}: {explain(error, _file(module))}") from error
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"{what} needs module {error.name}, which cannot be found") from None
    if not hasattr(found, attribute):
        public = [name for name in vars(found) if not name.startswith("_")]
        raise ConfigError(f"{what} in {_file(module)}: it has no {attribute!r}; {nearest(attribute, public)}")
    return getattr(found, attribute)


TRUSTED = "ROBOT_RL_IMPORTS"
"""Environment variable with the names of trusted packages, separated by commas."""
_OURS = {"robot_rl", "policies", "sim", "real"}
SUITES = ("ogbench", "fetch", "metaworld")
"""Packages of public benchmark suites, which only our own code in sim/suites imports."""


def trust(path: str) -> None:
    """Trust the package of an import path in this process and its children."""
    known, package = os.environ.get(TRUSTED, "").split(","), path.partition(":")[0].partition(".")[0]
    if package not in {*known, *_OURS}:
        os.environ[TRUSTED] = ",".join([*filter(None, known), package])


def check_trusted(path: str, what: str) -> None:
    """Raise ConfigError if an import path in a file belongs to an untrusted package."""
    package = path.partition(":")[0].partition(".")[0]
    plugins = (claim for group in _claims(tuple(sys.path)).values() for claims in group.values() for claim in claims)
    if package in {*_OURS, *os.environ.get(TRUSTED, "").split(",")}:
        return
    if package in sys.stdlib_module_names:
        raise ConfigError(f"{what} names Python's own {package!r}, which is not a package for robot-rl")
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{what} is of package {package!r}, which is not installed here")
    if all(claim.path.partition(":")[0].partition(".")[0] != package for claim in plugins):
        raise ConfigError(
            f"{what} would import package {package!r}, which no file may do by itself: the package registers nothing "
            f"with robot-rl by an entry point. If you trust the file and the package, set {TRUSTED}={package}"
        )


DATASET = "dataset:"
"""Prefix of the task name of a policy trained on a dataset alone; the dataset's folder name follows the prefix."""


def check_trusted_task(task: str) -> None:
    """Raise ConfigError if a task named in a file is an import path of an untrusted package."""
    if task.startswith(DATASET):
        return
    path = task.removeprefix("gym:").removeprefix("testbed:")  # names with these prefixes may also contain a module
    suite = task.startswith("gym:") and path.partition(":")[0] in SUITES
    if ":" in path and not suite:
        check_trusted(path, f"task {task!r}")


def _file(module: str) -> str:
    spec = importlib.util.find_spec(module)
    return spec.origin if spec and spec.origin else module


@dataclass(frozen=True)
class Claim:
    """Entry point of an installed package."""

    path: str
    """Import path of the object, `module:attribute`."""
    package: str
    """Name and version of the package."""


@cache
def _claims(path: tuple[str, ...]) -> dict[str, dict[str, list[Claim]]]:
    """Return the entry points in all `robot_rl.` groups, by group and by name in it; `path` is sys.path."""
    found: dict[str, dict[str, list[Claim]]] = {}
    if not any(_mentions(folder, "[robot_rl.") for folder in path):
        return found
    from importlib import metadata  # its import takes 25 ms

    seen = set()
    for package in metadata.distributions(path=list(path)):
        text = package.read_text("entry_points.txt") or ""
        if "[robot_rl." not in text or package.name in seen:
            continue
        seen.add(package.name)  # Python imports the first on the path
        try:
            offered = [point for point in package.entry_points if point.group.startswith("robot_rl.")]
        except (ValueError, TypeError) as error:
            warnings.warn(
                f"entry_points.txt of package {package.name} is damaged ({error}) and not used; install it again",
                stacklevel=2,
            )
            continue
        for point in offered:
            claims = found.setdefault(point.group, {}).setdefault(point.name, [])
            claims.append(Claim(point.value, f"{package.name} {package.version}"))
    return found


def _mentions(folder: str, group: str) -> bool:
    """Return whether any package in a folder of sys.path has entry points in a group."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(f"{entry.path}/entry_points.txt", encoding="utf-8") as file:
                    if group in file.read():
                        return True
    return False


@dataclass
class Registry:
    """Objects of one kind by name.

    >>> tasks = Registry("task", {"panda-lift": ("sim.tasks.panda_lift:TASK", "lift a cube")})
    >>> tasks.get("panda-lift")            # imports sim.tasks.panda_lift
    >>> tasks.get("my_lab.drawer:TASK")    # an import path
    """

    kind: str
    entries: Mapping[str, tuple[str, str] | Callable[..., Any]] = field(default_factory=dict)
    """The project's objects by name: (`module:attribute`, one-line description), or a function with a docstring."""
    group: str = ""
    """Group of entry points of other packages; empty: `robot_rl.<kind>s`."""
    instance_of: str = ""
    """Import path of the class that objects of other packages must have; empty: any class."""
    finish: Callable[[Any, str, str], Any] = lambda thing, name, path: thing
    """Function of the object, its name and its import path, whose result `get` returns."""

    def __post_init__(self) -> None:
        self.group = self.group or f"robot_rl.{self.kind}s"

    def get(self, name: str) -> Any:
        """Import and return the object of a name.

        Raises:
            UnknownName: the name is unknown; the message lists similar names.
            ConfigError: two packages register the name, or the import fails; the message names packages or file.
        """
        if name in self.entries:
            entry = self.entries[name]
            if not isinstance(entry, tuple):
                return entry
            return self.finish(load(entry[0], f"{self.kind} {name!r}"), name, entry[0])
        if ":" in name:
            trust(name)
            return self.finish(self._load_foreign(name, f"{self.kind} {name!r}", ""), name, name)
        claims = self._plugins().get(name, [])
        module, _, attribute = name.rpartition(".")
        if not claims and module and importlib.util.find_spec(module.partition(".")[0]):
            raise ConfigError(f"{self.kind} {name!r} is unknown; if it is an import path, write {module}:{attribute}")
        if not claims:
            raise UnknownName(self.kind, name, list(self))
        if len(claims) > 1:
            both = " and ".join(f"{claim.package} ({claim.path})" for claim in claims)
            raise ConfigError(f"{self.kind} {name!r} is claimed by {both}; uninstall one, or write the import path")
        (claim,) = claims
        what = f"{self.kind} {name!r} of package {claim.package} ({claim.path})"
        return self.finish(self._load_foreign(claim.path, what, claim.package.split()[0]), name, claim.path)

    def path(self, name: str) -> str:
        """Return the import path of the object with a name."""
        entry = self.entries.get(name)
        if isinstance(entry, tuple):
            return entry[0]
        return name if ":" in name else self._plugins()[name][0].path

    def vet(self, text: str) -> str:
        """Return a name from a file; raise ConfigError if its lookup would import an untrusted package."""
        name, _ = self.split(text)
        if ":" in name:
            check_trusted(name, f"{self.kind} {text!r}")
        return text

    def _load_foreign(self, path: str, what: str, package: str) -> Any:
        """Import an object of another package; ConfigError if the import fails or the object is of another class."""
        remedy = f"correct it, or pip uninstall {package}" if package else "correct it, or check the path"
        module = path.partition(":")[0]
        try:
            if package == "" and importlib.util.find_spec(module.partition(".")[0]) is None:
                raise ConfigError(
                    f"{what}: no module named {module.partition('.')[0]!r}; install its package "
                    "(pip install -e FOLDER), or put its folder on PYTHONPATH"
                )
            thing = load(path, what)
        except UserError:
            raise
        except Exception as error:
            raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: {error}; {remedy}") from error
        if self.instance_of and not isinstance(thing, wanted := load(self.instance_of, self.kind)):
            raise ConfigError(f"{what} is a {type(thing).__name__} and no {wanted.__name__}; {remedy}")
        return thing

    def _plugins(self) -> dict[str, list[Claim]]:
        return _claims(tuple(sys.path)).get(self.group, {})

    def split(self, text: str) -> tuple[str, list[str]]:
        """Split `name:argument:...` or `module:attribute:argument:...` into name and arguments."""
        first, *rest = text.split(":")
        if not rest or first in self.entries:
            return first, rest
        if "." in first or (first not in self._plugins() and first and importlib.util.find_spec(first)):
            return f"{first}:{rest[0]}", rest[1:]
        return first, rest

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the project and of installed packages."""
        return iter(sorted({*self.entries, *self._plugins()}))

    def describe(self, name: str) -> str:
        """Return a one-line description; for another package's object, package and path, as nothing is imported."""
        claims = self._plugins().get(name, [])
        packages = " and ".join(claim.package for claim in claims)
        if name in self.entries:
            entry = self.entries[name]
            line = entry[1] if isinstance(entry, tuple) else (entry.__doc__ or "").partition("\n")[0]
            return line + (f" (package {packages} uses this name too, and is not found by it)" if claims else "")
        if len(claims) > 1:
            return f"claimed by {packages}: uninstall one, or use the import path"
        return f"{claims[0].path} of package {packages}"
