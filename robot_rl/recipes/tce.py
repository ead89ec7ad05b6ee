"""Episodic RL on segments of movements: Li, Zhou et al. 2024, "Open the Black Box: Step-based Policy Updates for
Temporally-Correlated Episodic Reinforcement Learning" (TCE, arXiv 2401.11437).

Policy: a Gaussian, with full covariance, on the weights of a movement primitive, drawn once per episode; critic: one
value with privileged state; target: returns of segments; actor: likelihood ratios of segments in a trust region of
mean and covariance; data: on-policy; reward: the task's. --agent.segments 1 is black-box RL (Otto et al. 2022, arXiv
2210.09622) with the same trust region."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from policies.movement import MovementConfig, MovementPolicy
from robot_rl.learning.algorithms.tce import TCE, TCEConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OnPolicyRecipe
from robot_rl.training.on_policy import OnPolicyConfig
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class TemporallyCorrelatedEpisodes(OnPolicyRecipe):
    """Learn whole movements, drawn once per episode, from the rewards of their segments."""

    reduced = "movements are displacements, without feedback of positions; the same covariance in all states"
    policy: MovementConfig = MovementConfig()
    agent: TCEConfig = TCEConfig(
        hidden=(128, 128), gae_lambda=0.0, clip=10.0, critic_only=0, entropy_coef=0.0, target_kl=None, epochs=20,
        minibatches=1,
    )  # fmt: skip
    """The trust region takes the place of the clip."""
    training: OnPolicyConfig = OnPolicyConfig(steps=3_000_000, num_envs=128, rollout=100)

    def build(self, job: Job, env: Any = None) -> TCE:
        torch.manual_seed(job.seed)
        job.info.require_end()
        assert job.info.horizon is not None
        policy = MovementPolicy(job.size, replace(self.policy, horizon=self.policy.horizon or job.info.horizon))
        if self.training.rollout < policy.horizon:
            raise ConfigError(
                f"--training.rollout {self.training.rollout} is less than a movement of {policy.horizon} actions; "
                "raise it"
            )
        return TCE(policy.to(job.device), env.privileged_size, self.agent, job.seed, self.terms(job))
