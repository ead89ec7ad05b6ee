"""A simulated robot with an operator who overrides the policy; infos as in `RobotEnv`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import EnvWrapper, VectorEnv
from robot_rl.operators.arm import arm_view
from robot_rl.operators.scripted import OperatorView, Rule


class OperatorPolicy(Protocol):
    """Someone who can take over from the policy, step by step."""

    def reset(self) -> None:
        """Begin an episode, without control."""

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        """Return whether they have control in this step of the episode, and their action (1, A) then."""


class InterventionWrapper(EnvWrapper):
    """One environment in which an operator overrides the policy.

    Infos have the `executed` action (1, A), and, (1,) bool each, `intervention`, `takeover` and `handed_back`.
    """

    def __init__(self, env: VectorEnv, operator: OperatorPolicy):
        if env.num_envs != 1:
            raise ValueError(f"an operator watches one environment, not {env.num_envs}")
        super().__init__(env)
        self.operator = operator
        self.steps, self.held = 0, False
        self.observation: Observation = {}
        """The newest one."""

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode without the operator in control."""
        first = self.env.reset(**kwargs)
        self.observation = first[0]
        self._begin()
        return first

    def _begin(self) -> None:
        self.steps, self.held = 0, False
        self.operator.reset()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of a scripted operator that the environment reports enough for."""
        lifts = hasattr(self.env, "pipeline") and bool(self.task.scene.objects and self.pipeline.robot.tool)
        stalls: tuple[Rule, ...] = ("stall", "miss") if lifts else ("stall",) if hasattr(self.env, "progress") else ()
        return (*stalls, "value-gap", "random", "none")

    def view(self, action: Tensor) -> OperatorView:
        """Return what the operator sees before the policy's action (1, A): of a robot the true positions of objects,
        not the tracker's."""
        env = self.env
        if not hasattr(env, "pipeline"):
            return OperatorView(self.observation, action, lambda: float(env.progress()[0]))
        true, state = env.true.objects, env.state
        objects = {name: torch.cat([true[name][:, :3], pose[:, 3:]], 1) for name, pose in state.objects.items()}
        return arm_view(env.pipeline, replace(state, objects=objects), action)

    def step(self, action: Tensor) -> tuple[Any, ...]:
        """Execute the operator's action if they have control, else `action` (1, A)."""
        before = self.held
        self.held, correction = self.operator(self.view(action), self.steps)
        executed = correction if self.held else action
        self.steps += 1
        self.observation, reward, terminated, truncated, infos = self.env.step(executed)
        flags = {
            "intervention": self.held,
            "takeover": self.held and not before,
            "handed_back": before and not self.held,
        }
        infos |= {"executed": executed} | {name: torch.tensor([value]) for name, value in flags.items()}
        if bool(terminated | truncated):
            self._begin()
        return self.observation, reward, terminated, truncated, infos
