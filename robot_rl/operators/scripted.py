"""Scripted operator, who takes over from the policy by a rule and then acts as the task's demonstrator."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import Demonstrator
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.state import RobotState
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt

Rule = Literal["stall", "miss", "value-gap", "true-gap", "random", "none"]
Judge = Callable[[Observation, Tensor], tuple[float, float]]
"""Function that returns the values of an action (1, A) and of the best known action at an observation."""
GLANCE = 2
"""Rule miss: tolerated number of consecutive steps with open fingers beside the object."""
BESIDE = 0.015
"""Horizontal distance of the tool from the object, m, beyond which open fingers miss the object."""
ABOVE = 0.045
"""Height of the tool above the object, m, below which the policy does not correct a miss."""


@dataclass(frozen=True)
class OperatorConfig:
    """Takeover rule, takeover length and skill of a scripted operator."""

    rule: Rule = "stall"
    """Reason for a takeover. stall: no progress; miss: no progress, or open fingers low beside the object; value-gap:
    the judge values its best action above the policy's (Luo et al. 2023, RLIF); true-gap: the same, with the
    values of a testbed, by which each wasted step costs 10 %; random: at random; none: never."""
    skill: str = "STEADY"
    """Skill of the task's demonstrator, which computes the operator's actions."""
    reaction: NonNegativeInt = 0
    """Time from the reason for a takeover to the takeover, steps."""
    length: PositiveInt = 20
    """Length of a takeover, steps."""
    patience: PositiveInt = 20
    """Rules stall and miss: tolerated number of steps without progress."""
    advance: NonNegativeFloat = 0.004
    """Rules stall and miss: least increase of the environment's `progress` that counts as progress, m."""
    gap: Fraction = 0.95
    """Rules value-gap and true-gap: share of the best action's value below which the policy's action counts as
    worse."""
    certainty: Fraction = 0.95
    """Rules value-gap and true-gap: takeover probability in a step in which the policy's action counts as worse."""
    rate: Fraction = 0.05
    """Takeover probability per step under rule random, and under rules value-gap and true-gap while the policy's
    action does not count as worse."""
    speed: Fraction = 1.0
    """Share of the demonstrator's motion that the operator commands."""
    beside: NonNegativeFloat = 0.0
    """Distance by which the operator aims beside an arm's objects, m, in a horizontal direction that is drawn once."""
    tiring: NonNegativeFloat = 0.0
    """Growth of the reaction with each takeover, steps."""


CORRECTIONS = OperatorConfig("miss", patience=24, length=100)
"""Operator who corrects an arm as on the twin: at 20 Hz, takeovers of 5 s after a miss or 1.2 s without progress."""
PEOPLE = {
    "steady": CORRECTIONS,
    "slow": replace(CORRECTIONS, reaction=16, speed=0.4),
    "beside": replace(CORRECTIONS, beside=0.01),
    "tired": replace(CORRECTIONS, tiring=0.5),
}
"""Operators of an arm who err as people do: 0.8 s late and at 40 % of the speed; always 1 cm beside; 0.025 s later
after each takeover."""


@dataclass(frozen=True)
class OperatorView:
    """Inputs of an operator before a step."""

    observation: Observation
    action: Tensor
    """(1, A) action that the policy would execute."""
    progress: Callable[[], float]
    """Function that returns the progress of the task, m; larger is closer to success."""
    missing: Callable[[], bool] = lambda: False
    """Function that returns whether an arm's open fingers are low beside the object."""
    true_values: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
    """Function that returns the true values of the policy's action and of the best action."""
    motion: int | None = None
    """Number of the action's first values that move the robot; None: all do."""
    displaced: Callable[[Tensor], Observation] | None = None
    """Function that returns the observation with the objects moved by (2,) m; None: there are none."""


class ScriptedOperator:
    """Operator of one environment who acts as its demonstrator while in control.

    No takeover begins in the first step of an episode, so a step of the policy precedes each takeover.
    """

    def __init__(self, demonstrator: Demonstrator, config: OperatorConfig, seed: int, judge: Judge | None = None):
        if config.rule == "value-gap" and judge is None:
            raise ValueError("rule value-gap takes a judge")
        self.demonstrator, self.config, self.judge = demonstrator, config, judge
        self.rng = torch.Generator().manual_seed(seed)
        self.takeovers = 0
        """Number of takeovers in all episodes."""
        self.beside = torch.zeros(2)
        """Direction and distance by which the operator aims beside the objects, m."""
        if config.beside:
            angle = 2 * math.pi * torch.rand((), generator=self.rng)
            self.beside = config.beside * torch.stack([angle.cos(), angle.sin()])
        self.reset()

    def reset(self) -> None:
        """Begin an episode in which the operator does not have control yet."""
        self.begun = False
        self.due: float | None = None
        """Step of the next takeover; None: there is no reason for a takeover."""
        self.until: float | None = None
        """Step at which the current takeover ends; None: the policy has control."""
        self.best = float("-inf")
        """Largest progress since the episode began or the last takeover ended, m."""
        self.improved: float | None = None
        """Step of the last increase of progress; None: not observed yet."""
        self.aligned: float = 0
        """Last step in which open fingers were not low beside the object."""

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        """Return whether the operator has control in this step of the episode, and the operator's action (1, A).

        Steps may be fractional if the operator observes more often than the policy acts.
        """
        if self.until is not None and step >= self.until:
            self.until, self.improved, self.aligned = None, None, step
        if self.until is None:
            if self.due is None and self._wants(view, step) and self.begun:
                self.due = step + self.config.reaction + self.config.tiring * self.takeovers
            if self.due is not None and step >= self.due:
                self.due, self.until, self.best = None, step + self.config.length, float("-inf")
                self.takeovers += 1
                self.demonstrator.reset(torch.arange(1))
        self.begun = True
        if self.until is None:
            return False, view.action
        return True, self._act(view)

    def _act(self, view: OperatorView) -> Tensor:
        observation = view.observation
        if self.config.beside:
            if view.displaced is None:
                raise ConfigError("operator.beside is for arms that handle objects: leave it at 0")
            observation = view.displaced(self.beside)
        action = self.demonstrator.act(dict(observation)).clone()
        action[:, : view.motion] *= self.config.speed
        return action

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
        if c.rule in ("value-gap", "true-gap"):
            judged = self.judge and self.judge(view.observation, view.action)
            ours, best = judged or view.true_values()
            chance = c.certainty if ours < c.gap * best else c.rate
        return bool(torch.rand((), generator=self.rng) < chance)


def offset(state: RobotState, name: str = "") -> Tensor:
    """Return the vector (3,) from the tool of one arm to an object, m; by default to its first."""
    return state.objects[name or next(iter(state.objects))][0, :3] - state.tool_position[0]


def progress(state: RobotState, test: str = "") -> float:
    """Return the progress of one arm towards a success test of the tabletop, m; by default, in lifting its first
    object."""
    verb, name, *rest = test.split(":") if test else ("lifted", next(iter(state.objects)))
    x, y, height = state.objects[name][0, :3].tolist()
    near = -float(offset(state, name).norm())
    if verb == "reached":
        return near
    if verb == "beyond":
        return near + (3 * y if float(rest[0]) > 0 else -3 * y)
    if verb in ("beside", "inside"):
        there = state.objects[rest[0]][0].tolist()
        return near + 3 * height - 3 * math.hypot(x - there[0], y - there[1])
    return near + 3 * height


def missing(state: RobotState, width: float, name: str = "") -> bool:
    """Return whether an arm's open fingers are low beside an object, by default its first. `width`: distance between
    the fingers of the open gripper, m."""
    away, opening = offset(state, name), float(state.gripper_width) / width if width else 0.0
    return float(away[:2].norm()) > BESIDE and float(away[2]) > -ABOVE and opening > 0.6


def arm_view(pipeline: Pipeline, state: RobotState, action: Tensor) -> OperatorView:
    """Return an operator's view of one arm in `state`, before the policy's action (1, A)."""
    width = pipeline.robot.gripper.width if pipeline.robot.gripper else 0.0
    told = pipeline.interface.instructions
    test = told[int(state.instruction)].success if told else ""
    name = test.split(":")[1] if test else ""

    def displaced(away: Tensor) -> Observation:
        moved = {name: pose + F.pad(away, (0, pose.shape[1] - 2)) for name, pose in state.objects.items()}
        return {"observation.state": pipeline.observer(replace(state, objects=moved))}

    return OperatorView(
        {"observation.state": pipeline.observer(state)}, action, lambda: progress(state, test),
        lambda: missing(state, width, name),
        motion=pipeline.actions.size - bool(pipeline.robot.gripper), displaced=displaced,
    )  # fmt: skip
