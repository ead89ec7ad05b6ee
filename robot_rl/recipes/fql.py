"""Flow Q-learning: Park et al. 2025 (FQL, arXiv 2502.02538); with policy.horizon 5 it is QC-FQL (Li et al. 2025,
"Reinforcement Learning with Action Chunking", arXiv 2507.07969).

Policy: one step from noise to action, near a cloned flow; critics: 2, minimum; data: offline updates, then half
demonstrations, half online; reward: success, or the task's. The paper weighs cloning for each task by hand (alpha 10 to
1000 on unscaled values); here the value's mean size counts as 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from policies.generative import GenerativeConfig, GenerativePolicy
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.fql import FQL, FQLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig


@dataclass(frozen=True)
class FlowQ(OffPolicyRecipe):
    """Learn offline with an expressive policy, then online."""

    policy: GenerativeConfig = field(default_factory=lambda: GenerativeConfig("one-step"))
    agent: FQLConfig = field(
        default_factory=lambda: FQLConfig(
            tau=0.005, discount=0.99, n_step=1, l2=0.0, actor_delay=1, ema_decay=0.99,
            exploration=ExplorationConfig(noise_memory=0.0),
        )
    )  # fmt: skip
    training: OffPolicyConfig = field(default_factory=lambda: OFFLINE)
    agent_class: ClassVar[type[ActorCritic]] = FQL

    def make_policy(self, job: Job) -> GenerativePolicy:
        return GenerativePolicy(job.size, self.policy)
