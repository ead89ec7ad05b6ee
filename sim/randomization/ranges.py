"""Ranges from files and the command line, and tasks with other ranges or with constant values."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from robot_rl.interface.symmetry import Reflection, joined
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UnknownName
from sim.parameters import PLACE, nominal_value, parameters
from sim.randomization import Randomize
from sim.tasks.base import Task

Ranges = dict[str, dict[str, Any]]
"""Range by parameter: low, high, and distribution, which is that of the task if it is left out."""
_KEYS = {"low", "high", "distribution"}


def read_ranges(file: Path | None = None, flags: Sequence[str] = ()) -> Ranges:
    """Return the ranges of a JSON or TOML file, {parameter: {low, high, distribution}}, then those of `flags`, written
    PARAMETER=LOW:HIGH, PARAMETER=LOW:HIGH:DISTRIBUTION, or PARAMETER=VALUE for a constant."""
    return (_of_file(file) if file else {}) | dict(map(_of_flag, flags))


def _of_file(file: Path) -> Ranges:
    try:
        text = file.read_bytes()
        content = tomllib.loads(text.decode()) if file.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON or TOML file of ranges ({error}); see docs/randomization.md") from None
    if not isinstance(content, dict):
        raise ConfigError(f'{file} holds no table; write {{"cube.mass": {{"low": 0.05, "high": 0.4}}}}')
    found: Ranges = {}
    tables = [("", content)]
    while tables:  # dots in a name of TOML make tables
        above, table = tables.pop()
        for key, value in table.items():
            name = f"{above}{key}"
            if isinstance(value, dict) and not value.keys() & _KEYS:
                tables.append((f"{name}.", value))
            else:
                found[name] = _checked(f"{file}: {name}", value)
    return found


def _checked(what: str, value: Any) -> dict[str, Any]:
    """Return the range that a file gives for a parameter: a table, or a number, which is constant."""
    if _number(value):
        return {"low": float(value), "high": float(value)}
    good = isinstance(value, dict) and {"low", "high"} <= value.keys() <= _KEYS
    if not (good and _number(value["low"]) and _number(value["high"])):
        raise ConfigError(f"{what} is {json.dumps(value, default=str)}; give low and high as numbers, and distribution")
    return {**value, "low": float(value["low"]), "high": float(value["high"])}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_flag(flag: str) -> tuple[str, dict[str, Any]]:
    name, _, text = flag.partition("=")
    low, _, rest = text.partition(":")
    high, _, distribution = rest.partition(":")
    try:
        bounds = {"low": float(low), "high": float(high or low)}
    except ValueError:
        raise ConfigError(f"--range {flag}: write PARAMETER=LOW:HIGH, for example cube.mass=0.05:0.4") from None
    return name, bounds | ({"distribution": distribution} if distribution else {})


def with_ranges(task: Task, ranges: Mapping[str, Mapping[str, Any]]) -> Task:
    """Return the task with ranges that replace its own, or are added to them. Raise UnknownName for a parameter that
    its robot and scene lack, and ConfigError for an invalid range."""
    if not ranges:
        return task
    known = parameters(robots.get(task.interface.robot), task.scene)
    own = {r.parameter: r for r in task.randomization}
    for name, given in ranges.items():
        if name not in known:
            raise UnknownName(f"parameter of task {task.name!r}", name, known)
        try:
            own[name] = replace(own[name], **given) if name in own else Randomize(name, **given)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return _with(task, tuple(own.values()))


def with_values(task: Task, values: Mapping[str, float]) -> Task:
    """Return the task with constant `values` of parameters. Only the initial poses of its objects are still drawn; all
    other parameters are nominal."""
    placed = {f"{thing.name}.{axis}" for thing in task.scene.objects for axis in PLACE}
    places = [r for r in task.randomization if r.parameter in placed and r.parameter not in values]
    return _with(task, (*places, *(Randomize(name, value, value) for name, value in values.items())))


def _with(task: Task, randomization: tuple[Randomize, ...]) -> Task:
    """Return the task with other ranges, and with a mirror for them."""
    mirror = task.mirror
    if mirror is not None:  # the privileged observation ends with the values of the parameters
        first = len(mirror.privileged) - len(task.randomization)
        own = zip(task.randomization, mirror.privileged.sign[first:].tolist(), strict=True)
        odd = dict.fromkeys(ODD, -1.0) | {r.parameter: sign for r, sign in own}
        signs = [odd.get(r.parameter, 1.0) for r in randomization]
        state = mirror.privileged.only(range(first))
        mirror = replace(mirror, privileged=joined(state, Reflection(range(len(signs)), signs)))
    return replace(task, randomization=randomization, mirror=mirror)


ODD = ("base.com_y",)
"""Parameters whose sign changes when left and right are exchanged."""


def as_ranges(randomization: Sequence[Randomize]) -> Ranges:
    """Return ranges as a file has them."""
    return {r.parameter: {key: asdict(r)[key] for key in sorted(_KEYS)} for r in randomization}


def table(task: Task) -> list[dict[str, Any]]:
    """Return one row for each randomized parameter of a task: range, unit, nominal value, owner and effect."""
    known = parameters(robots.get(task.interface.robot), task.scene)
    own = [(r, known[r.parameter]) for r in task.randomization if r.parameter in known]
    return [
        r.record() | {"nominal": nominal_value(r.parameter, task.scene), "owner": row.owner, "acts": row.effect}
        for r, row in own
    ]
