"""Learning from groups of episodes of a vision-language-action policy.

Policy: a vla-tokens base, whose decoder learns; no critic: episodes are compared within groups that start in the same
situation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from robot_rl.learning.algorithms.grape import GRAPE, GRAPEConfig
from robot_rl.learning.algorithms.srpo import SRPO, SRPOConfig
from robot_rl.learning.algorithms.token_groups import TokenGroups, TokenGroupsConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import GroupRecipe
from robot_rl.recipes.vla_rl import token_policy


@dataclass(frozen=True)
class TokenGroupRecipe(GroupRecipe):
    """Improve a token policy by comparing its episodes."""

    agent: TokenGroupsConfig = TokenGroupsConfig()
    agent_class: ClassVar[type[TokenGroups]]

    def build(self, job: Job, env: Any = None) -> TokenGroups:
        torch.manual_seed(job.seed)
        return self.agent_class(token_policy(job.require_base().policy).to(job.device), self.agent, job.seed)


@dataclass(frozen=True)
class SelfReferential(TokenGroupRecipe):
    """Improve a token policy by the relative rewards of its episodes.

    SRPO: group-relative PPO, Fei et al. 2025 (arXiv 2511.15605). Reward: success, and for failures their similarity to
    the group's successes in the base's frozen features, in place of a video model's. Temperature, clips and rewards are
    the paper's, the learning rate is not."""

    agent: SRPOConfig = SRPOConfig(temperature=1.6)
    agent_class: ClassVar[type[TokenGroups]] = SRPO


@dataclass(frozen=True)
class Preferences(TokenGroupRecipe):
    """Improve a token policy by preferring its better episodes.

    GRAPE: Zhang et al. 2024 (arXiv 2411.19309). Reward: success, then duration, then the policy's log-probability."""

    agent: GRAPEConfig = GRAPEConfig()
    agent_class: ClassVar[type[TokenGroups]] = GRAPE
