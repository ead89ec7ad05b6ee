"""A scripted operator: acts as the task's demonstrator, and takes over by a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import Demonstrator
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt

Rule = Literal["stall", "miss", "value-gap", "random", "none"]
Judge = Callable[[Observation, Tensor], tuple[float, float]]
"""Return the value of an action (1, A) at an observation of one environment, and that of the best action known."""
GLANCE = 2
"""With miss: steps that the fingers may be beside the object."""


@dataclass(frozen=True)
class OperatorConfig:
    """When a scripted operator of one environment takes over, for how long, and how well it acts."""

    rule: Rule = "stall"
    """Take over when nothing advances (stall), then and when an arm's open fingers come down beside the object (miss),
    when the policy's action is worth less than the judge's (value-gap; Luo et al. 2023, RLIF), at random, or never
    (none)."""
    skill: str = "STEADY"
    """Skill of the task's demonstrator, which gives the actions."""
    reaction: NonNegativeInt = 0
    """Steps from the reason to take over to the takeover."""
    length: PositiveInt = 20
    """Steps of a takeover."""
    patience: PositiveInt = 20
    """With stall and miss: steps without progress that are tolerated."""
    advance: NonNegativeFloat = 0.004
    """With stall and miss: the least that counts as progress, in units of the environment's `progress`, m."""
    gap: Fraction = 0.95
    """With value-gap: a worse action has less than this share of the best one's value."""
    certainty: Fraction = 0.95
    """With value-gap: chance per step to take over from a worse action."""
    rate: Fraction = 0.05
    """Chance per step to take over: with random always, with value-gap from an action that is no worse."""


@dataclass(frozen=True)
class OperatorView:
    """Inputs of an operator before a step."""

    observation: Observation
    action: Tensor
    """The policy's, (1, A)."""
    progress: Callable[[], float]
    """How far the task has come, m; larger is further."""
    missing: Callable[[], bool] = lambda: False
    """Whether an arm's open fingers are beside the object."""


class ScriptedOperator:
    """Watch one environment and act in it as its demonstrator while in control.

    A takeover never begins with an episode, so each has a step of the policy before it.
    """

    def __init__(self, demonstrator: Demonstrator, config: OperatorConfig, seed: int, judge: Judge | None = None):
        if config.rule == "value-gap" and judge is None:
            raise ValueError("rule value-gap takes a judge")
        self.demonstrator, self.config, self.judge = demonstrator, config, judge
        self.rng = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self) -> None:
        """Begin an episode, without control."""
        self.begun = False
        self.due: float | None = None
        """Step at which control is taken; None: no reason to."""
        self.until: float | None = None
        """Step at which the running takeover ends; None: no control."""
        self.best = float("-inf")
        """The most progress so far, m."""
        self.improved: float | None = None
        """Step of the last progress; None: not watched yet."""
        self.aligned: float = 0
        """Last step at which the fingers were not beside the object."""

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        """Return whether the operator has control in this step of the episode, and the action (1, A) then.

        Steps may come in fractions, where the operator looks more often than the policy acts.
        """
        if self.until is not None and step >= self.until:
            self.until, self.improved, self.aligned = None, None, step
        if self.until is None:
            if self.due is None and self._wants(view, step) and self.begun:
                self.due = step + self.config.reaction
            if self.due is not None and step >= self.due:
                self.due, self.until, self.best = None, step + self.config.length, float("-inf")
                self.demonstrator.reset(torch.arange(1))
        self.begun = True
        if self.until is None:
            return False, view.action
        return True, self.demonstrator.act(dict(view.observation))

    def _wants(self, view: OperatorView, step: float) -> bool:
        """Return whether there is a reason to take over."""
        c = self.config
        if c.rule == "none":
            return False
        if c.rule in ("stall", "miss"):
            now = view.progress()
            if self.improved is None or now > self.best + c.advance:
                self.best, self.improved = now, step
            if c.rule == "stall" or not view.missing():
                self.aligned = step
            return step - self.improved >= c.patience or step - self.aligned > GLANCE
        chance = c.rate
        if c.rule == "value-gap":
            assert self.judge is not None
            ours, best = self.judge(view.observation, view.action)
            chance = c.certainty if ours < c.gap * best else c.rate
        return bool(torch.rand((), generator=self.rng) < chance)
