"""Soft actor-critic: Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv 1812.05905).

Policy: tanh-Gaussian with a learned standard deviation; critics: 2, minimum, entropy in the backup; actor: maximizes
the minimum with a learned temperature; data: online; reward: the task's; schedule: uniform actions first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from policies.actor import GaussianPolicy
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig


@dataclass(frozen=True)
class SAC(OffPolicyRecipe):
    """Learn from the task's reward, off-policy, from nothing."""

    policy: GaussianConfig = field(default_factory=lambda: GaussianConfig(initial_std=1.0, layer_norm=False))
    agent: ActorCriticConfig = field(
        default_factory=lambda: ActorCriticConfig(
            layer_norm=False, tau=0.005, discount=0.99, n_step=1, entropy=True, entropy_backup=True,
            initial_temperature=1.0, entropy_per_action=-1.0, pooling="min", l2=0.0, actor_delay=1, grad_clip=None,
            ema_decay=0.99, exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
        )
    )  # fmt: skip
    training: OffPolicyConfig = field(default_factory=lambda: replace(ONE_ENV, reward="task", demo_share=0.0))

    def make_policy(self, job: Job) -> GaussianPolicy:
        return GaussianPolicy(job.size, self.policy)
