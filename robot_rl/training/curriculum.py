"""Curricula: numbers that move towards limits while the policy performs well, and back when it does not.

`RandomizationCurriculum` moves the bounds of randomized parameters: automatic domain randomization (ADR), OpenAI et al.
2019, "Solving Rubik's Cube with a Robot Hand" (arXiv 1910.07113).
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from robot_rl.interface.call import read_call
from robot_rl.interface.environment import EnvWrapper
from robot_rl.learning.parts.curriculum import Curriculum
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, Interval, PositiveInt
from robot_rl.util.registry import Registry

Measure = Literal["success", "reward"]
"""Outcome of an episode: 1 at success, else 0; or the mean reward of its control periods, where those that a fall cut
off count 0."""
Wrap = Callable[[Any], EnvWrapper]
"""Curriculum: a function that wraps the environment of a training."""


class RandomizationCurriculum(EnvWrapper):
    """An environment whose randomized parameters begin at their nominal values, with bounds that move to those of the
    task while episodes at the bounds go well.

    >>> env = RandomizationCurriculum(TaskEnv("go2-velocity", 512), 0.03, 0.04, "reward")
    """

    def __init__(
        self, env: Any, low: float, high: float, measure: Measure = "success", size: int = 20, step: float = 0.1,
        boundary: float = 0.5,
    ):  # fmt: skip
        """See `adr`. Raises ConfigError for an environment without parameters that can move, or without the measured
        outcome."""
        super().__init__(env)
        if low >= high:
            raise ConfigError(f"curriculum adr: low {low:g} is not below high {high:g}")
        if measure == "success" and not env.info.reports_success:
            raise ConfigError(f"task {env.info.task!r} reports no success: write --curriculum adr:LOW:HIGH:reward")
        nominal, ranges = getattr(env, "nominal_values", {}), getattr(env, "randomization", ())
        starts = {r.parameter: min(max(nominal[r.parameter], r.low), r.high) for r in ranges if r.parameter in nominal}
        ways = [
            (r.parameter, side, starts[r.parameter], limit)
            for r in ranges if r.parameter in starts for side, limit in enumerate((r.low, r.high))
        ]  # fmt: skip
        ways = [way for way in ways if way[2] != way[3]]
        if not ways:
            raise ConfigError(f"task {env.info.task!r} has no randomized parameters with nominal values")
        self.measure, self.sides = measure, [(name, side) for name, side, *_ in ways]
        start, limit = torch.tensor([way[2:] for way in ways], dtype=torch.double).T
        self.bounds = Curriculum(start, limit, step, size, low, high)
        """Bounds of the parameters' ranges, each a parameter and 0 for its low or 1 for its high bound in `sides`."""
        self.total = torch.zeros(env.num_envs, device=env.device)
        self.length = torch.zeros(env.num_envs, dtype=torch.double)
        """Sums of the rewards (n,), and numbers of control periods (n,), of the running episodes."""
        self.whole = torch.ones(env.num_envs, dtype=torch.bool)
        """Whether (n,) the running episodes began at their first step; staggered ones are not counted."""
        env.pin(self.sides, boundary)
        self.ranges = {name: [start, start] for name, start in starts.items()}
        self._apply()

    def _apply(self) -> None:
        for (name, side), value in zip(self.sides, self.bounds.value.tolist(), strict=True):
            self.ranges[name][side] = value
        self.env.set_ranges({name: (low, high) for name, (low, high) in self.ranges.items()})

    def reset(self, *, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        self.whole.fill_(not (options or {}).get("stagger", False))
        self.total.zero_()
        self.length.zero_()
        return self.env.reset(options=options, **kwargs)

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment, and report the episodes at bounds that ended."""
        pinned = self.env.pinned.cpu().clone()
        result: tuple[Any, ...] = self.env.step(actions)
        _, reward, terminated, truncated, infos = result
        self.total += reward
        self.length += 1
        done = (terminated | truncated).cpu()
        if not done.any():
            return result
        if self.measure == "success":
            outcome = infos["success"].double().cpu()
        else:  # the periods that a fall cut off count with reward 0
            outcome = self.total.cpu().double() / torch.where(terminated.cpu(), self.env.info.horizon, self.length)
        counted = done & self.whole & (pinned >= 0)
        if self.bounds.report(pinned[counted], outcome[counted]):
            self._apply()
        self.whole |= done
        self.total.masked_fill_(done.to(self.total.device), 0.0)
        self.length.masked_fill_(done, 0.0)
        return result

    @property
    def curriculum_metrics(self) -> dict[str, float]:
        """Return how far the bounds are on their ways, 0 to 1."""
        far = dict(zip(self.sides, self.bounds.progress.tolist(), strict=True))
        own = {f"adr/{name}_{('low', 'high')[side]}": value for (name, side), value in far.items()}
        return own | {"adr/mean": sum(far.values()) / len(far)}

    def wrapper_state(self) -> dict[str, Any]:
        """Return the bounds, their buffers, and the sums of the running episodes."""
        own = {name: getattr(self, name).clone() for name in ("total", "length", "whole")}
        return own | {"bounds": self.bounds.state_dict()}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `wrapper_state`; the environment has its ranges in its own state."""
        self.bounds.load_state_dict(state["bounds"])
        for name in ("total", "length", "whole"):
            setattr(self, name, state[name].to(getattr(self, name).device, copy=True))


def adr(
    low: float, high: float, measure: Measure = "success", size: PositiveInt = 20,
    step: Annotated[float, Interval(gt=0, le=1)] = 0.1, boundary: Fraction = 0.5,
) -> Wrap:  # fmt: skip
    """Widen the ranges of randomized parameters from their nominal values.

    In a share `boundary` of the episodes one parameter is at one of its bounds. After `size` of them, the bound moves
    on if their mean outcome is at least `high`, and back if it is at most `low`, by a share `step` of the way from the
    nominal value to the task's bound. The paper's buffers of 240 episodes suit months of simulated time; the defaults
    suit minutes.
    """
    return lambda env: RandomizationCurriculum(env, low, high, measure, size, step, boundary)


curricula = Registry(
    "curriculum",
    {
        "adr": adr,
        "qarl": ("robot_rl.training.adversary:qarl", "an adversary that becomes rational pushes"),
        "rarl": ("robot_rl.training.adversary:rarl", "an adversary of a fixed temperature pushes"),
        "random-forces": ("robot_rl.training.adversary:random_forces", "forces at random"),
    },
    group="robot_rl.curricula",
)


def read_curriculum(text: str) -> Wrap:
    """Build a curriculum from text such as "adr:0.5:0.8"."""
    wrap: Wrap = read_call(curricula, text, Wrap)()
    return wrap
