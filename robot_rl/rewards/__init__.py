"""Reward sources: rewards of transitions and the limits of their returns."""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvInfo
from robot_rl.util.errors import ConfigError

RewardName = Literal["success", "task"]
"""Name of a reward. success: 1 when the task's success test ends the episode, in simulation and on a robot; task: the
environment's own reward."""
TermsName = Literal["success", "task", "terms"]
"""Name of a reward, as in `RewardName`; terms: the terms of the task's reward as a vector."""


class RewardSource(Protocol):
    """Reward function over the transitions of a vector environment."""

    def __call__(self, reward: Tensor, infos: dict[str, Any]) -> Tensor:
        """Return rewards (n,) or terms (n, K), float32, from one step's environment reward (n,) and infos."""

    def limits(self, discount: float) -> tuple[float, float]:
        """Return the least and greatest possible return."""


class EpisodeReward(Protocol):
    """Reward function over finished episodes, which also sets the discount."""

    @property
    def discount(self) -> float:
        """Return the present discount per step."""

    def __call__(self, episode: dict[str, Tensor]) -> Tensor:
        """Return rewards (T,) of a finished episode in the format of `Replay.newest`; the discount may change."""

    def metrics(self) -> dict[str, float]:
        """Return metrics by name."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""


@dataclass(frozen=True)
class SuccessReward:
    """Reward of 1 in a successful step, 0 otherwise."""

    terminates: bool = True
    """Whether success ends the episode, so that the return is at most 1."""

    def __call__(self, reward: Tensor, infos: dict[str, Any]) -> Tensor:
        return infos["success"].float()

    def relabel(self, episode: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a recorded episode unchanged, since its column `reward` already is 1 on success."""
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
class TakeoverReward:
    """Reward of -1 in the last step before a takeover, 0 otherwise; the task's own reward is ignored.

    Luo et al. 2023, "RLIF: Interactive Imitation Learning as Reinforcement Learning" (arXiv 2311.12996).
    """

    def relabel(self, episode: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return an episode with this reward (T,), 0 if it has no column `intervention`; `terminated` is kept."""
        terminated = episode.get("terminated", episode["reward"] > 0)
        held = episode.get("intervention", torch.zeros_like(terminated)).bool()
        return episode | {"reward": -led_to_takeover(held).float(), "terminated": terminated}

    def limits(self, discount: float) -> tuple[float, float]:
        """Return the least return, of a takeover at every second step, and the greatest return, of no takeover."""
        return -1 / max(1 - discount**2, 1e-6), 0.0


def led_to_takeover(intervention: Tensor) -> Tensor:
    """Return (T,) bool, True in the policy's last step before each takeover.

    `intervention` (T,) bool marks steps that the person executed. A takeover in the first step has no step before it.
    """
    following = torch.cat([intervention[1:], intervention.new_zeros(1)])
    return following & ~intervention


@dataclass(frozen=True)
class TermsReward:
    """The K terms of the environment's reward as a vector (n, K)."""

    names: tuple[str, ...]

    def __call__(self, reward: Tensor, infos: dict[str, Any]) -> Tensor:
        return torch.stack([infos["rewards"][name].float() for name in self.names], 1)

    def limits(self, discount: float) -> tuple[float, float]:
        return -math.inf, math.inf


def reward_source(name: TermsName, info: EnvInfo) -> RewardSource:
    """Return the reward source `name` for a task; ConfigError if the task does not report it."""
    if name == "task":
        return TaskReward()
    if name == "terms":
        if not info.rewards:
            raise ConfigError(f"{info.task} reports no terms of its reward: use --training.reward task")
        return TermsReward(info.rewards)
    if not info.reports_success:
        raise ConfigError(f"{info.task} reports no success, so that cannot be the reward: use --training.reward task")
    return SuccessReward(info.success_terminates)
