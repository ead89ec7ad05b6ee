"""A simulated robot with a scripted operator who overrides the policy; infos as in `RobotEnv`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor


class OverriddenEnv:
    """One environment in which an operator overrides the policy; delegate everything else.

    The operator is called with what is `seen` and the time of the episode, s, and returns whether they have control and
    their action (1, A). Infos have the `executed` action (1, A), and, (1,) bool each, `intervention`,
    `takeover` and `handed_back`.
    """

    def __init__(self, env: Any, operator: Any):
        if env.num_envs != 1:
            raise ValueError(f"an operator watches one environment, not {env.num_envs}")
        self.env, self.operator = env, operator
        self.steps, self.held = 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode without the operator in control."""
        first = self.env.reset(**kwargs)
        self._begin()
        return first

    def _begin(self) -> None:
        self.steps, self.held = 0, False
        self.operator.reset(0.0)

    def seen(self, action: Tensor) -> Any:
        """Return what the operator sees before the policy's action (1, A): the robot's state, with true objects."""
        state, true = self.env.state, self.env.true
        objects = {name: torch.cat([true.objects[name][:, :3], pose[:, 3:]], 1) for name, pose in state.objects.items()}
        return replace(state, objects=objects)

    def step(self, action: Tensor) -> tuple[Any, ...]:
        """Execute the operator's action if they have control, else `action` (1, A)."""
        before = self.held
        self.held, hands = self.operator(self.seen(action), self.steps / self.env.rate)
        executed = hands if self.held else action
        self.steps += 1
        *rest, terminated, truncated, infos = self.env.step(executed)
        flags = {
            "intervention": self.held,
            "takeover": self.held and not before,
            "handed_back": before and not self.held,
        }
        infos |= {"executed": executed} | {name: torch.tensor([value]) for name, value in flags.items()}
        if bool(terminated | truncated):
            self._begin()
        return (*rest, terminated, truncated, infos)
