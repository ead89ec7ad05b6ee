"""Scripted operator: takes over by a rule and acts as the task's demonstrator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import Demonstrator
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt

Rule = Literal["stall", "miss", "value-gap", "random", "none"]
Judge = Callable[[Observation, Tensor], tuple[float, float]]
"""Return the values of an action (1, A) and of the best known action at an observation of one environment."""
GLANCE = 2
"""Rule miss: tolerated steps with the fingers beside the object."""
BESIDE = 0.015
"""Horizontal distance from the object, m, at which open fingers miss it."""
ABOVE = 0.045
"""Height above the object, m, below which the policy does not correct a miss."""


@dataclass(frozen=True)
class OperatorConfig:
    """Takeover rule, takeover length and skill of a scripted operator."""

    rule: Rule = "stall"
    """Reason for a takeover. stall: no progress; miss: no progress, or open fingers low beside the object; value-gap:
    lower value of the policy's action than of the judge's (Luo et al. 2023, RLIF); random: at random; none: never."""
    skill: str = "STEADY"
    """Skill of the task's demonstrator, which computes the operator's actions."""
    reaction: NonNegativeInt = 0
    """Reaction time from the reason to the takeover, steps."""
    length: PositiveInt = 20
    """Length of a takeover, steps."""
    patience: PositiveInt = 20
    """Rules stall and miss: tolerated steps without progress."""
    advance: NonNegativeFloat = 0.004
    """Rules stall and miss: least increase of the environment's `progress` that counts, m."""
    gap: Fraction = 0.95
    """Rule value-gap: a worse action has less than this share of the best action's value."""
    certainty: Fraction = 0.95
    """Rule value-gap: takeover probability per step with a worse action."""
    rate: Fraction = 0.05
    """Takeover probability per step: rule random, and rule value-gap without a worse action."""


CORRECTIONS = OperatorConfig("miss", patience=24, length=100)
"""Corrections of an arm as on the twin: takeovers of 5 s after a miss or 1.2 s without progress, at 20 Hz."""


@dataclass(frozen=True)
class OperatorView:
    """Inputs of an operator before a step."""

    observation: Observation
    action: Tensor
    """(1, A) action of the policy."""
    progress: Callable[[], float]
    """Progress of the task, m; larger is further."""
    missing: Callable[[], bool] = lambda: False
    """Whether an arm's open fingers are low beside the object."""


class ScriptedOperator:
    """Operator of one environment who acts as its demonstrator while in control.

    No takeover begins in the first step of an episode, so a step of the policy precedes each takeover.
    """

    def __init__(self, demonstrator: Demonstrator, config: OperatorConfig, seed: int, judge: Judge | None = None):
        if config.rule == "value-gap" and judge is None:
            raise ValueError("rule value-gap takes a judge")
        self.demonstrator, self.config, self.judge = demonstrator, config, judge
        self.rng = torch.Generator().manual_seed(seed)
        self.reset()

    def reset(self) -> None:
        """Begin an episode without control."""
        self.begun = False
        self.due: float | None = None
        """Step of the next takeover; None: no reason for one."""
        self.until: float | None = None
        """Step at which the current takeover ends; None: no control."""
        self.best = float("-inf")
        """Largest progress so far, m."""
        self.improved: float | None = None
        """Step of the last increase of progress; None: not observed yet."""
        self.aligned: float = 0
        """Last step without the fingers beside the object."""

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        """Return whether the operator has control in this step of the episode, and the operator's action (1, A).

        Steps may be fractional if the operator observes more often than the policy acts.
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
        """Return whether there is a reason for a takeover."""
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


def offset(state: RobotState) -> Tensor:
    """Return the vector (3,) from the tool of one arm to its first object, m."""
    return next(iter(state.objects.values()))[0, :3] - state.tool_position[0]


def progress(state: RobotState) -> float:
    """Return the progress of one arm in lifting its first object, m."""
    height = next(iter(state.objects.values()))[0, 2]
    return float(3 * height - offset(state).norm())


def missing(state: RobotState, width: float) -> bool:
    """Return whether open fingers are low beside the first object; `width`: opening of the open gripper, m."""
    away, opening = offset(state), float(state.gripper_width) / width if width else 0.0
    return float(away[:2].norm()) > BESIDE and float(away[2]) > -ABOVE and opening > 0.6


def arm_view(pipeline: Pipeline, state: RobotState, action: Tensor) -> OperatorView:
    """Return an operator's view of one arm in `state`, before the policy's action (1, A)."""
    width = pipeline.robot.gripper.width if pipeline.robot.gripper else 0.0
    observation = {"observation.state": pipeline.observer(state)}
    return OperatorView(observation, action, lambda: progress(state), lambda: missing(state, width))
