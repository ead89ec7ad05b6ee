"""Environment with a written reward in place of its own reward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import EnvInfo, EnvWrapper
from robot_rl.rewards.written.code import BadCode, evaluate
from robot_rl.rewards.written.file import WrittenReward
from robot_rl.rewards.written.views import Views, final_observation
from robot_rl.util.errors import ConfigError, UserError


def written_reward_info(info: EnvInfo) -> EnvInfo:
    """Return a task's facts with a written reward; ConfigError for a task with several instructions."""
    if info.interface is not None and info.interface.instructions:
        raise ConfigError(f"{info.task} asks for one of several things, and a written reward knows only one")
    return replace(info, rewards=())


class RewardWrapper(EnvWrapper):
    """Vector environment with a written reward, which is 0 where physics diverged."""

    def __init__(self, env: Any, reward: WrittenReward):
        """Raise ConfigError if the reward was written for another task."""
        super().__init__(env)
        self.written = reward
        self.info, self.views = written_reward_info(env.info), Views.of(env)
        reward.require_task(env.info.task, self.views)
        self.before: Observation = {}

    def reset(self, **kwargs: Any) -> Any:
        first = self.env.reset(**kwargs)
        self.before = first[0]
        return first

    def step(self, actions: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Execute actions (n, A) for one control period; UserError if the reward is not finite."""
        following, _, terminated, truncated, infos = self.env.step(actions)
        infos.pop("rewards", None)
        last = final_observation(following, terminated | truncated, infos)
        try:
            reward = evaluate(self.written.function, self.views(last), self.views(self.before), actions.clamp(-1, 1))
        except BadCode as error:
            raise UserError(f"the written reward of {self.written.task}: {error}") from None
        broken = infos.get("diverged", torch.zeros_like(terminated))
        if not bool((reward.isfinite() | broken).all()):
            raise UserError(
                f"the written reward of {self.written.task} is not finite in {int((~reward.isfinite()).sum())} of "
                f"{len(reward)} environments; have it revised: `robot-rl reward write --feedback`"
            )
        self.before = following
        return following, torch.where(broken, 0.0, reward), terminated, truncated, infos

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore the state from `state_dict`; return its observation."""
        self.before = super().load_state_dict(state)
        return self.before
