"""Group-relative PPO with rewards for progress on a vision-language-action policy: Fei et al. 2025, "SRPO" (arXiv
2511.15605).

Policy: a vla-tokens base, whose decoder learns; no critic: episodes are compared within groups that begin alike; data:
groups of episodes; reward: success, and for failures their likeness to the group's successes in the base's frozen
features, in place of a video model's. Temperature, clips and rewards are the paper's, the learning rate is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from robot_rl.learning.algorithms.srpo import SRPO, SRPOConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import GroupRecipe
from robot_rl.recipes.vla_rl import writer


@dataclass(frozen=True)
class SelfReferential(GroupRecipe):
    """Improve a policy that writes tokens by the relative success of its episodes."""

    agent: SRPOConfig = field(default_factory=lambda: SRPOConfig(temperature=1.6))

    def build(self, job: Job, env: Any = None) -> SRPO:
        torch.manual_seed(job.seed)
        return SRPO(writer(job.require_base().policy).to(job.device), self.agent, job.seed)
