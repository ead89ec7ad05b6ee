"""One-step flow Q-learning: Nguyen et al. 2025 (OFQL, arXiv 2508.13904).

Policy: a flow of averaged velocities, one evaluation per action; critics: 2, minimum; data: offline updates, then half
demonstrations, half online; reward: success, or the task's. With agent.eta 0 it is behaviour cloning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.generative import GenerativeConfig, GenerativePolicy
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.ofql import OFQL, OFQLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class OneStepFlowQ(OffPolicyRecipe):
    """Learn offline with a flow that needs one evaluation, then online."""

    policy: GenerativeConfig = field(default_factory=lambda: GenerativeConfig("mean-flow"))
    agent: OFQLConfig = field(
        default_factory=lambda: OFQLConfig(
            tau=0.005, discount=0.99, n_step=1, l2=0.0, actor_delay=1, ema_decay=0.995,
            exploration=ExplorationConfig(noise_memory=0.0),
        )
    )  # fmt: skip
    training: OffPolicyConfig = field(default_factory=lambda: OFFLINE)
    agent_class: ClassVar[type[ActorCritic]] = OFQL

    def make_policy(self, job: Job) -> GenerativePolicy:
        return GenerativePolicy(job.size, self.policy)
