"""Make the environment of a task by name: a task of this package, a testbed, or any Gymnasium environment."""

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robot_rl.interface.environment import EnvInfo, VectorEnv
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.symmetry import Mirror
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError
from robot_rl.util.registry import DATASET
from sim.foreign.gym_env import GymEnv
from sim.scenes import robot_model
from sim.step.sampling import TRAINING
from sim.tasks import FOREIGN, TESTBED, tasks, without_robot
from sim.testbeds import base as testbed
from sim.testbeds import testbeds


def describe(task: str, env_python: Path | None = None, episode_steps: int | None = None) -> EnvInfo:
    """Return the facts about a task's environment. For a task of this package, no simulation starts."""
    _check_steps(task, episode_steps)
    if task.startswith(TESTBED):
        return testbed.describe(_testbed(task))
    if task.startswith(FOREIGN):
        env = GymEnv(task, 1, env_python, steps=episode_steps or 0)
        env.close()
        return env.info
    ours = tasks.get(task)
    return EnvInfo.of(Pipeline(ours.interface), bool(ours.expert), tuple(r.name for r in ours.rewards))


def make(
    task: str, num_envs: int, env_python: Path | None = None, episode_steps: int | None = None, **simulation: Any
) -> VectorEnv:
    """Return `num_envs` copies of a task. `simulation`: keywords of `TaskEnv`; tasks without a robot use only
    `instruction_set`. `episode_steps`: episode length of another package's environment; None: the environment's limit.
    Raises ConfigError for options that the task does not support."""
    if task.startswith(DATASET):
        raise ConfigError(
            f"{task} is a dataset, where nothing can be tried out; `robot-rl evaluate RUN --dataset DIR` compares a "
            "policy's actions with those in it"
        )
    instruction_set = simulation.get("instruction_set", TRAINING)
    _check_steps(task, episode_steps)
    if simulation.get("changes") and task.startswith((TESTBED, FOREIGN)):
        raise ConfigError(f"the instructions of {task} do not change on the way; leave out --changes")
    ranges, varied = simulation.get("ranges"), task.startswith(TESTBED) and _testbed(task).randomization
    if ranges and without_robot(task) and not varied:
        raise ConfigError(f"{task} has no parameters to randomize; leave out --randomization and --range")
    if simulation.get("levels") and task.startswith((TESTBED, FOREIGN)):
        raise ConfigError(f"{task} has no uneven ground; leave out --levels")
    if instruction_set != TRAINING and task.startswith(TESTBED):
        raise ConfigError(f"{task} has no instructions; leave out --instructions")
    if task.startswith(TESTBED):
        small = testbed.TestbedEnv(_testbed(task), num_envs)
        small.set_ranges({name: (given["low"], given["high"]) for name, given in (ranges or {}).items()})
        return small
    if task.startswith(FOREIGN):
        return GymEnv(task, num_envs, env_python, instruction_set, steps=episode_steps or 0)
    from sim.env import TaskEnv

    env: Any = TaskEnv(task, num_envs, **simulation)
    env.mirror = mirror_of(env.task, env.randomization)
    made: VectorEnv = env
    return made


def _check_steps(task: str, episode_steps: int | None) -> None:
    """Raise ConfigError if `episode_steps` is given for a task with its own time limit."""
    if episode_steps and not task.startswith(FOREIGN):
        raise ConfigError(f"{task} has a time limit of its own; leave out --episode-steps")


def files_of(task: str, mjcf: str = "") -> list[Path]:
    """Return the files that define a task: its code and its robot's model; [] for a task of another package."""
    if task.startswith(FOREIGN):
        return []
    if task.startswith(TESTBED):
        paths = [inspect.getsourcefile(type(_testbed(task)))]
    else:
        ours = tasks.get(task)
        module, expert = (path.partition(":")[0] for path in (tasks.path(task), ours.expert))
        names = [module, expert] if expert else [module]
        paths = [inspect.getsourcefile(importlib.import_module(name)) for name in names]
        paths.append(str(robot_model(robots.get(ours.interface.robot), mjcf)))
    return [Path(path) for path in paths if path]


def _testbed(task: str) -> testbed.Testbed:
    made: testbed.Testbed = testbeds.get(task.removeprefix(TESTBED))()
    return made


def mirror_of(task: Any, randomization: Sequence[Any]) -> Mirror | None:
    """Return the task's mirror for an environment that randomizes only `randomization`; None if the task has no mirror.
    The privileged observation ends with the values of the randomized parameters."""
    if task.mirror is None:
        return None
    used, names = {r.parameter for r in randomization}, [r.parameter for r in task.randomization]
    first = len(task.mirror.privileged) - len(names)
    kept = [*range(first), *(first + k for k, name in enumerate(names) if name in used)]
    return replace(task.mirror, privileged=task.mirror.privileged.only(kept))
