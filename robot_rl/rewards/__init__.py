"""Reward sources: the reward of a transition, and the resulting limits of returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvInfo
from robot_rl.util.errors import ConfigError

RewardName = Literal["success", "task"]
"""success: 1 when the task's success test ends the episode, which a robot can tell as well; task: the environment's."""
TermsName = Literal["success", "task", "terms"]
"""terms: the parts of the task's reward, one by one."""


class RewardSource(Protocol):
    """Label the transitions of a vector environment."""

    def __call__(self, reward: Tensor, infos: dict[str, Any]) -> Tensor:
        """Return rewards (n,), or terms (n, K), float32 for the environment's reward (n,) and infos of one step."""

    def limits(self, discount: float) -> tuple[float, float]:
        """Return the least and the greatest possible return."""


@dataclass(frozen=True)
class SuccessReward:
    """1 in steps that succeed, 0 otherwise."""

    terminates: bool = True
    """Success ends the episode, so a return is at most 1."""

    def __call__(self, reward: Tensor, infos: dict[str, Any]) -> Tensor:
        return infos["success"].float()

    def relabel(self, episode: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a recorded episode, whose reward is success already."""
        return episode

    def limits(self, discount: float) -> tuple[float, float]:
        return 0.0, 1.0 if self.terminates else 1 / max(1 - discount, 1e-6)


@dataclass(frozen=True)
class TaskReward:
    """The environment's own reward."""

    def __call__(self, reward: Tensor, infos: dict[str, Any]) -> Tensor:
        return reward.float()

    def limits(self, discount: float) -> tuple[float, float]:
        return -math.inf, math.inf


@dataclass(frozen=True)
class TermsReward:
    """The terms of the environment's reward."""

    names: tuple[str, ...]

    def __call__(self, reward: Tensor, infos: dict[str, Any]) -> Tensor:
        """Return the terms (n, K)."""
        return torch.stack([infos["rewards"][name].float() for name in self.names], 1)

    def limits(self, discount: float) -> tuple[float, float]:
        return -math.inf, math.inf


def reward_source(name: TermsName, info: EnvInfo) -> RewardSource:
    """Return the reward source called `name` for a task; ConfigError if the task lacks it."""
    if name == "task":
        return TaskReward()
    if name == "terms":
        if not info.rewards:
            raise ConfigError(f"{info.task} reports no terms of its reward: use --training.reward task")
        return TermsReward(info.rewards)
    if not info.reports_success:
        raise ConfigError(f"{info.task} reports no success, so that cannot be the reward: use --training.reward task")
    return SuccessReward(info.success_terminates)
