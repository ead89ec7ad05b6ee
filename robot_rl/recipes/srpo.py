"""Learning from groups of episodes of a vision-language-action policy.

Policy: a vla-tokens base, whose token decoder learns. Instead of a critic, episodes are compared within groups that
start in the same situation."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from policies.bundle import Bundle
from robot_rl.learning.algorithms.srpo import SRPO, SRPOConfig
from robot_rl.learning.algorithms.token_groups import TokenGroups, TokenGroupsConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.recipes.vla_rl import token_policy
from robot_rl.training.choosing import InstructionCurriculum
from robot_rl.training.group import GroupConfig, train_groups
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class GroupRecipe(Recipe):
    """Improve a token policy by comparing its episodes within groups."""

    training: GroupConfig = GroupConfig()
    agent: TokenGroupsConfig = TokenGroupsConfig()
    agent_class: ClassVar[type[TokenGroups]]
    needs: ClassVar[tuple[Need, ...]] = ("base", "environment")
    sim_idle_during_update: ClassVar[bool] = True
    extendable_setting: ClassVar[str] = "training.rounds"

    def build(self, job: Job, env: Any = None) -> TokenGroups:
        torch.manual_seed(job.seed)
        return self.agent_class(token_policy(job.require_base().policy).to(job.device), self.agent, job.seed)

    def train(self, job: Job) -> Bundle:
        env = job.make_env(self.training.num_envs)
        if isinstance(env, InstructionCurriculum):
            raise ConfigError("groups that always or never succeed are skipped in any case; leave out --choose")
        agent = self.build(job, env)
        train_groups(env, agent, self.training, job.opened, job.seed, job.counting("rounds", self.training.rounds))
        env.close()
        return job.bundle(agent)


@dataclass(frozen=True)
class SelfReferential(GroupRecipe):
    """Improve a token policy by the relative rewards of its episodes.

    SRPO: group-relative PPO, Fei et al. 2025 (arXiv 2511.15605). Reward: success; for a failed episode, its similarity
    to the group's successes in the base's frozen features, in place of a video model's features. Temperature, clips and
    rewards are the paper's, the learning rate is not."""

    reduced = "the base's features in place of a world model"
    agent: SRPOConfig = SRPOConfig(temperature=1.6)
    agent_class = SRPO
