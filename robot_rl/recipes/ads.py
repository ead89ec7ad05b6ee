"""Imitation from observation: Liu et al. 2024, "Imitation Learning from Observation with Automatic Discount Scheduling"
(ADS, arXiv 2310.07433).

Policy, critics and actor: as sac; data: online, and the states of demonstrations, not their actions or rewards; reward:
minus the cost of optimal transport to the nearest demonstration, known when an episode ends; discount: small at first,
larger when the agent follows more of the demonstrations' first steps. Neither the task's reward nor its success is
learned from, so an end of an episode does not end the return. Deviations: features are fields of the state, where the
paper has an encoder of pictures; distances are Euclidean; rewards are per unit of mass; sequences that end early count
as if their last state stayed, where the paper's all have one length."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from policies.base import EncodingPolicy
from policies.bundle import Bundle
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, Limits
from robot_rl.learning.parts.ads import Imitation, ImitationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need
from robot_rl.recipes.sac import SAC
from robot_rl.rewards import reward_source
from robot_rl.training.off_policy import OffPolicyConfig, train_off_policy
from robot_rl.util.errors import ConfigError, UnknownName


@dataclass(frozen=True)
class DiscountScheduling(SAC):
    """Imitate the states of demonstrations, without their actions and without a reward."""

    reduced = "fields of the state, no pictures"
    imitation: ImitationConfig = ImitationConfig()
    training: OffPolicyConfig = replace(SAC().training, steps=30_000)

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("environment", "demonstrations")

    def value_limits(self, job: Job) -> Limits:
        """Return no limits: the rewards are minus distances."""
        return UNLIMITED

    def observed(self, job: Job, policy: EncodingPolicy) -> Imitation:
        """Return the reward of the job's demonstrations, on whose states the policy's normalizer is fitted."""
        episodes = [episode["observation.state"] for episode in job.demonstrations(demos=self.training.demos)]
        reached = [states[1:] for states in episodes if len(states) > 1]
        if len(reached) < 2:
            raise ConfigError(
                f"{job.dataset} has {len(reached)} demonstrations of two or more steps, and recipe ads compares at "
                "least two with each other: record more, or take failed ones too with --training.demos all"
            )
        policy.fit({"observation.state": torch.cat(episodes).to(job.device)})
        names = [field.name for field in job.info.state.fields]
        for name in self.imitation.features:
            if name not in names:
                raise UnknownName("field of observation.state for the option imitation.features:", name, names)
        fields = [job.info.state.slice(name) for name in self.imitation.features]
        columns = torch.cat([torch.arange(field.start, field.stop) for field in fields]) if fields else slice(None)

        def features(states: Tensor) -> Tensor:
            return policy.normalizer(states.to(job.device))[:, columns]

        return Imitation(reached, self.imitation, self.agent.discount, job.info.horizon or 0, features)

    def train(self, job: Job) -> Bundle:
        if self.training.demo_share or self.training.offline_updates:
            raise ConfigError(
                "recipe ads reads no actions of demonstrations: leave --training.demo-share and "
                "--training.offline-updates at 0"
            )
        if self.training.action_repeat > 1:
            raise ConfigError("recipe ads compares steps with demonstrated steps: leave --training.action-repeat at 1")
        agent = self.build(job)
        imitation = self.observed(job, agent.policy)
        env = job.make_env(self.training.num_envs)
        train_off_policy(
            env, agent, None, reward_source(self.training.reward, job.info), self.training, job.opened, job.seed,
            job.counting("steps", self.training.steps), imitation,
        )  # fmt: skip
        env.close()
        return job.bundle(agent)
