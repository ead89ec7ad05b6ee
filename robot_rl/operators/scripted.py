"""A scripted operator: acts as the task's demonstrator, and takes over by a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import Demonstrator
from robot_rl.operators.override import OverriddenEnv
from robot_rl.operators.watch import PROGRESS, progress
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt

Rule = Literal["stall", "value-gap", "random", "none"]
Judge = Callable[[Observation, Tensor], tuple[float, float]]
"""Return the value of an action (1, A) at an observation of one environment, and that of the best action known."""


@dataclass(frozen=True)
class OperatorConfig:
    """When a scripted operator of one environment takes over, for how long, and how well it acts."""

    rule: Rule = "stall"
    """Take over when nothing advances (stall), when the policy's action is worth less than the judge's (value-gap; Luo
    et al. 2023, RLIF), at random, or never (none)."""
    skill: str = "STEADY"
    """Skill of the task's demonstrator, which gives the actions."""
    reaction: NonNegativeInt = 0
    """Steps from the reason to take over to the takeover."""
    length: PositiveInt = 20
    """Steps of a takeover."""
    patience: PositiveInt = 20
    """With stall: steps without progress that are tolerated."""
    advance: NonNegativeFloat = PROGRESS
    """With stall: the least that counts as progress, in units of the environment's `progress`, m."""
    gap: Fraction = 0.95
    """With value-gap: a worse action has less than this share of the best one's value."""
    certainty: Fraction = 0.95
    """With value-gap: chance per step to take over from a worse action."""
    rate: Fraction = 0.05
    """Chance per step to take over: with random always, with value-gap from an action that is no worse."""


@dataclass(frozen=True)
class Seen:
    """Inputs of a scripted operator before a step."""

    observation: Observation
    action: Tensor
    """The policy's, (1, A)."""
    progress: Callable[[], float]
    """How far the task has come, m; larger is further."""


class ScriptedOperator:
    """Watch one environment and act in it as its demonstrator while in control.

    A takeover never begins with an episode, so each has a step of the policy before it.
    """

    def __init__(self, demonstrator: Demonstrator, config: OperatorConfig, seed: int, judge: Judge | None = None):
        if config.rule == "value-gap" and judge is None:
            raise ValueError("rule value-gap takes a judge")
        self.demonstrator, self.config, self.judge = demonstrator, config, judge
        self.rng = torch.Generator().manual_seed(seed)
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Begin an episode, without control."""
        self.begun = False
        self.due: int | None = None
        """Steps until control is taken; None: no reason to."""
        self.left = 0
        """Steps of the running takeover that are left."""
        self._watch_anew()

    def _watch_anew(self) -> None:
        self.best, self.waited = float("-inf"), 0

    def __call__(self, seen: Seen, now: float) -> tuple[bool, Tensor]:
        """Return whether the operator has control in this step, and the action (1, A) then."""
        if not self.left:
            if self.due is not None:
                self.due -= 1
            elif self._wants(seen) and self.begun:
                self.due = self.config.reaction
            if self.due == 0:
                self.due, self.left = None, self.config.length
                self.demonstrator.reset(torch.arange(1))
                self._watch_anew()
        self.begun = True
        if not self.left:
            return False, seen.action
        self.left -= 1
        return True, self.demonstrator.act(dict(seen.observation))

    def _wants(self, seen: Seen) -> bool:
        """Return whether there is a reason to take over."""
        c = self.config
        if c.rule == "none":
            return False
        if c.rule == "stall":
            now = seen.progress()
            self.waited += 1
            if now > self.best + c.advance:
                self.best, self.waited = now, 0
            return self.waited >= c.patience
        chance = c.rate
        if c.rule == "value-gap":
            assert self.judge is not None
            ours, best = self.judge(seen.observation, seen.action)
            chance = c.certainty if ours < c.gap * best else c.rate
        return bool(torch.rand((), generator=self.rng) < chance)


class OperatedEnv(OverriddenEnv):
    """One environment of any task with a demonstrator, whose operator gets `Seen`; infos as in `OverriddenEnv`."""

    observation: Observation

    def reset(self, **kwargs: Any) -> Any:
        first = super().reset(**kwargs)
        self.observation = first[0]
        return first

    def step(self, action: Tensor) -> tuple[Any, ...]:
        result = super().step(action)
        self.observation = result[0]
        return result

    def seen(self, action: Tensor) -> Seen:
        """Return what the operator sees; of a robot the true poses of objects, not the tracker's."""
        if hasattr(self.env, "progress"):
            return Seen(self.observation, action, lambda: float(self.env.progress()[0]))
        state = super().seen(action)
        return Seen({"observation.state": self.env.pipeline.observer(state)}, action, lambda: progress(state))
