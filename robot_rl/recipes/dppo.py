"""PPO on denoising steps: Ren et al. 2024, "Diffusion Policy Policy Optimization" (DPPO, arXiv 2409.00588).

Policy: a diffusion base, whose last denoising steps learn; critic: one value with privileged state; target: GAE of
chunks; data: on-policy; reward: success, or the task's; schedule: critic first. Learning rates, discounts, clips and
noise are those of the paper for robomimic Can, except that the paper has discount 0.999 and 10 epochs."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from robot_rl.learning.algorithms.dppo import DPPO, DPPOConfig, denoiser_from
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OnPolicyRecipe
from robot_rl.training.on_policy import OnPolicyConfig


@dataclass(frozen=True)
class DenoisingPPO(OnPolicyRecipe):
    """Improve a diffusion policy from rewards, in many environments at once."""

    agent: DPPOConfig = DPPOConfig(
        hidden=(256, 256), clip=0.01, entropy_coef=0.0, epochs=5, minibatches=4, actor_lr=1e-4, target_kl=None
    )
    training: OnPolicyConfig = OnPolicyConfig(
        steps=150_000, num_envs=100, rollout=40, reward="success", checkpoint_every=40_000
    )
    needs_base = True

    def build(self, job: Job, env: Any = None) -> DPPO:
        torch.manual_seed(job.seed)
        policy = denoiser_from(job.require_base().policy, self.agent.denoising_steps).to(job.device)
        return DPPO(policy, env.privileged_size, self.agent, job.seed, self.terms(job))


@dataclass(frozen=True)
class AdaptiveDenoisingPPO(DenoisingPPO):
    """Improve a diffusion policy with an optimizer between Adam (--agent.mixing 1) and RMSProp (--agent.mixing 0).

    ADPO: Jiang and Yang 2025, "Adaptive Diffusion Policy Optimization for Robotic Manipulation" (arXiv 2505.08376). The
    rule for values between 0 and 1 is our own (`robot_rl/learning/parts/mixed.py`)."""

    reduced = "the mixing rule is ours"
    agent: DPPOConfig = replace(DenoisingPPO.agent, mixing=0.5)
