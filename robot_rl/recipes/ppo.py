"""On-policy RL from scratch: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (PPO, arXiv 1707.06347),
as applied to legged robots by Rudin et al. 2022, "Learning to Walk in Minutes Using Massively Parallel Deep
Reinforcement Learning" (arXiv 2109.11978).

Policy: feed-forward Gaussian with a history and its own normalizer; critic: one value with privileged state; target:
GAE, which after a truncation uses the value of the episode's last state; reward: the task's; schedule: learning rate
adapts to the divergence. In tasks that declare a symmetry, the policy also learns from the mirror image of each step
(Mittal et al. 2024, arXiv 2403.04359)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.learning.algorithms.ppo import PPO, PPOConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OnPolicyRecipe
from robot_rl.training.on_policy import OnPolicyConfig

HIDDEN = (128, 128, 128)


@dataclass(frozen=True)
class ProximalPolicy(OnPolicyRecipe):
    """Learn from the task's reward, in many environments at once."""

    policy: FeedforwardConfig = FeedforwardConfig(hidden=HIDDEN, history=3, initial_std=0.3)
    agent: PPOConfig = PPOConfig(hidden=HIDDEN, epochs=4)
    training: OnPolicyConfig = OnPolicyConfig(steps=3_800_000)
    data_parallel: ClassVar[bool] = True
    symmetry: bool = True
    """Learn also from the mirror image of each step, if the task declares a symmetry."""

    def build(self, job: Job, env: Any = None) -> PPO:
        torch.manual_seed(job.seed)
        policy = FeedforwardPolicy(job.size, self.policy).to(job.device)
        mirror = env.mirror if self.symmetry else None
        return PPO(policy, env.privileged_size, self.agent, job.seed, mirror, self.terms(job))


@dataclass(frozen=True)
class SLIM(ProximalPolicy):
    """Learn from all terms of the task's reward, independently of their scales.

    Emukpere et al. 2024, "SLIM: Skill Learning with Multiple Critics" (arXiv 2402.00823). The paper's discovery of
    skills is left out. Critic: one value per term; advantage: weighted sum of the terms' standardized advantages."""

    reduced = "no discovery of skills"
    training: OnPolicyConfig = OnPolicyConfig(steps=3_800_000, reward="terms")
