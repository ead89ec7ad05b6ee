"""A check: a method and its controls on a task where they should differ; and settings that several checks share."""

import shlex
from dataclasses import dataclass

EXPERT = "expert"
"""Name in place of a recipe for an arm that evaluates the task's scripted demonstrator."""


@dataclass(frozen=True)
class Arm:
    """Method or control of a check."""

    recipe: str
    """Name or import path of a recipe, or "expert" for the scripted demonstrator."""
    flags: tuple[str, ...] = ()
    """Additional flags of `robot-rl train`, or of `robot-rl evaluate` if the recipe is "expert"."""


@dataclass(frozen=True)
class Check:
    """A claim about a method, and its measurement."""

    claim: str
    """Expected difference between method and control, in one short sentence."""
    task: str
    method: Arm
    control: Arm
    """Usually the method without its mechanism."""
    data: tuple[str, ...] = ()
    """Flags of `robot-rl collect TASK`, which collects one dataset per seed, after the name of its task if that is not
    `task`; (): no dataset."""
    base: Arm | None = None
    """Arm that is trained first, with the data and seed of the other arms. Arms that need a base get it as --base."""
    base_data: tuple[str, ...] = ()
    """Flags of `robot-rl collect TASK`, which collects the base's own dataset; (): the base gets that of the arms."""
    figure: str = "success"
    """Compared figure of `robot-rl evaluate`: success, return, or a metric of the task."""
    at_least: float = 0.0
    """Threshold of the figure that the method must reach and the control must not reach; 0: no threshold."""
    evaluate: tuple[str, ...] = ()
    """Additional flags of `robot-rl evaluate` for both arms."""
    paper: str = ""
    """Authors, year and arXiv number of the claim's paper, if it is not the paper of the recipe."""
    second: Arm | None = None
    """Second control: the next best simple method, with the same data and steps. A method passes both."""
    parity: bool = False
    """Whether the method passes if its mean is not below the control's interval; else it must be better."""

    def collected(self, data: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words of `robot-rl collect` for `data` or `base_data`."""
        return data if data and not data[0].startswith("--") else (self.task, *data)

    @property
    def arms(self) -> dict[str, Arm]:
        """Return the arms in the order in which they are trained."""
        second = {"second": self.second} if self.second else {}
        return {"control": self.control} | second | {"method": self.method}


def flags(*parts: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of command-line parts; a part is a text to split or a tuple of words."""
    return tuple(word for part in parts for word in (shlex.split(part) if isinstance(part, str) else part))


SINGLE = flags("--policy.horizon 1 --policy.execute 1")
EVERY = flags("--training.demos all")
HALF = flags("--training.batch 128 --agent.hidden 128 128")
DENSE = flags("--training.reward task")
TEN = flags("--training.steps 10000")
SUCCESS = flags("--training.reward success")


def goal(option: str) -> tuple[str, ...]:
    """Return the flags, which begin with `option`, for the goal fields of the state of maze and fork-goal."""
    return (f"{option}.achieved", "position", f"{option}.difference", "", f"{option}.tolerance", "0.1")
