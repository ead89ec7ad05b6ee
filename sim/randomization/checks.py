"""Checks of randomization: values without an effect, or values that would be clipped, raise an error."""

from collections.abc import Iterator, Sequence

from robot_rl.interface.robot import RobotSpec
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UnknownName, nearest
from sim.engines import engines
from sim.engines.base import Engine
from sim.parameters import find, parameters
from sim.randomization import Randomize
from sim.scenes import Scene
from sim.tasks.base import Task


def nominal(task: Task, engine: str) -> list[str]:
    """Return the task's optional parameters that an engine cannot change: they stay at their nominal values."""
    kind: type[Engine] = engines.get(engine)
    optional = {r.parameter for r in task.randomization if r.optional}
    robot = robots.get(task.interface.robot)
    able, every = (of.can_randomize(robot, task.scene) for of in (kind, Engine))
    return sorted(optional & every - able)


def choose(task: Task, engine: str, randomize: bool, without: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the indices of the randomized parameters, and the names of the parameters that are not randomized. The
    parameters in `without` and in `nominal` are not randomized; with `randomize` False, no parameter is randomized."""
    names = [r.parameter for r in task.randomization]
    for name in without:
        if name not in names:
            raise UnknownName(f"parameter of task {task.name!r} to go without:", name, names)
    without = list(dict.fromkeys([*without, *(nominal(task, engine) if randomize else ())]))
    return [k for k, name in enumerate(names) if randomize and name not in without], without


def check_supported(used: Sequence[Randomize], robot: RobotSpec, scene: Scene, engine: str) -> None:
    """Raise ConfigError for parameters that this robot and scene lack or that the engine cannot change."""
    kind: type[Engine] = engines.get(engine)
    had = parameters(robot, scene)
    known = {name for name, row in had.items() if row.owner != "engine" or row.name in kind.settable}
    unknown = [r.parameter for r in used if r.parameter not in known]
    if unknown:
        typos = sorted(set(unknown) - set(had))
        remedy = f"to keep them at their nominal values, add --without {' '.join(unknown)}"
        raise ConfigError(
            f"engine {engine!r} cannot randomize {', '.join(unknown)}; it can: {', '.join(sorted(known))}; "
            + (nearest(typos[0], known) if typos else remedy)
        )


def check_twice(declared: Sequence[Randomize]) -> None:
    """Raise ConfigError for a parameter that a task randomizes more than once."""
    names = [r.parameter for r in declared]
    for name in names:
        if (count := names.count(name)) > 1:
            raise ConfigError(f"{name} is randomized {count} times; name it once in the task's `randomization`")


def check_randomization(used: Sequence[Randomize], period: float) -> None:
    """Raise ConfigError for parameters that cannot have their effect. `period`: control period, s."""
    for fault in _faults({r.parameter: r for r in used}, period):
        raise ConfigError(fault)


def _faults(used: dict[str, Randomize], period: float) -> Iterator[str]:
    for name, parameter in used.items():
        row = find(name)
        if row and parameter.ends[1] > row.high + 1e-9:
            most = f"at most {row.high:g} {row.unit} is possible"
            yield f"{name} may come to {parameter.ends[1]:g} {row.unit}, and {most}; lower its `high`"
    if "push.speed" in used and "push.interval" not in used:
        yield "push.speed is randomized and push.interval is not, so nothing would push; use both, or go without both"
    if "push.interval" in used and used["push.interval"].ends[0] < period:
        yield (
            f"push.interval may come to {used['push.interval'].ends[0]:g} s, less than a control period ({period:g} s),"
            " in which nothing would push; raise its `low`"
        )
