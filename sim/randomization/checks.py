"""Checks of randomization: values without an effect, or values that would be clipped, raise an error."""

from collections.abc import Iterator, Sequence

from robot_rl.interface.robot import RobotSpec
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError, UnknownName, nearest
from sim.engines import engines
from sim.engines.base import Engine
from sim.randomization import Randomize
from sim.rendering.looks import can_randomize as can_look
from sim.scenes import Scene
from sim.step.sensors import can_randomize
from sim.tasks.base import PLACE, Task


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
    boxes = [b.name for b in scene.objects]
    kind: type[Engine] = engines.get(engine)
    own = {f"{b}.{c}" for b in boxes for c in PLACE} | {"robot.home_offset"}
    own |= {"push.speed", "push.interval"} if robot.base else set()
    measured = can_randomize(robot, len(boxes), scene.ground is not None)
    known = kind.can_randomize(robot, scene) | measured | can_look(scene) | own
    unknown = [r.parameter for r in used if r.parameter not in known]
    if unknown:
        typos = sorted(set(unknown) - Engine.can_randomize(robot, scene))
        remedy = f"to keep them at their nominal values, add --without {' '.join(unknown)}"
        raise ConfigError(
            f"engine {engine!r} cannot randomize {', '.join(unknown)}; it can: {', '.join(sorted(known))}; "
            + (nearest(typos[0], known) if typos else remedy)
        )


def check_randomization(
    declared: Sequence[Randomize], used: Sequence[Randomize], period: float, longest: float
) -> None:
    """Raise ConfigError for parameters that cannot have their effect. `declared`: parameters of the task. `used`: those
    that are randomized. `period`: control period, s. `longest`: largest action delay that the engine supports, s."""
    for fault in _faults([r.parameter for r in declared], {r.parameter: r for r in used}, period, longest):
        raise ConfigError(fault)


def _faults(names: list[str], used: dict[str, Randomize], period: float, longest: float) -> Iterator[str]:
    for name in names:
        if names.count(name) > 1:
            yield f"{name} is randomized {names.count(name)} times; name it once in the task's `randomization`"
    for name, parameter in used.items():
        most = {"robot.action_delay": longest}.get(name, period)
        if name.endswith("_delay") and parameter.ends[1] > most + 1e-9:
            what = "an engine holds" if name == "robot.action_delay" else "one control period holds"
            yield f"{name} may come to {parameter.ends[1]:g} s, and {what} {most:g} s at most; lower its `high`"
    if "push.speed" in used and "push.interval" not in used:
        yield "push.speed is randomized and push.interval is not, so nothing would push; use both, or go without both"
    if "push.interval" in used and used["push.interval"].ends[0] < period:
        yield (
            f"push.interval may come to {used['push.interval'].ends[0]:g} s, less than a control period ({period:g} s),"
            " in which nothing would push; raise its `low`"
        )
