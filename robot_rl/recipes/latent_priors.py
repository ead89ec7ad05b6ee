"""On-policy RL on latent actions: Hausdörfer et al. 2024, "Latent Action Priors for Locomotion with Deep Reinforcement
Learning" (arXiv 2410.03246).

Policy: a Gaussian on directions in which demonstrated actions move, and, with a small weight, on all actions; critic:
one value with privileged state; target: GAE; data: on-policy, and a few seconds of demonstrated actions before it;
reward: the task's; schedule: as ppo. Deviations: the directions are linear, and the paper's optional reward for
moving like the demonstration is left out."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from policies.latent import LatentActionConfig, LatentActionPolicy
from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.ppo import PPO
from robot_rl.recipes.job import Job
from robot_rl.recipes.ppo import HIDDEN, ProximalPolicy
from robot_rl.recipes.recipe import Need


@dataclass(frozen=True)
class LatentPriors(ProximalPolicy):
    """Learn from the task's reward, along directions of demonstrated actions."""

    reduced = "linear directions, no reward for the style"
    policy: LatentActionConfig = LatentActionConfig(hidden=HIDDEN, history=3, initial_std=1.0)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, "demonstrations")

    def build(self, job: Job, env: Any = None) -> PPO:
        torch.manual_seed(job.seed)
        policy = LatentActionPolicy(job.size, self.policy)
        mirror = env.mirror if self.symmetry else None
        actions = Demonstrations.of(job.demonstrations(demos="all")).columns["action"]
        reflection = policy.fit_latents(actions, mirror.action if mirror else None)
        if mirror is not None:
            mirror = replace(mirror, action=reflection)
        return PPO(policy.to(job.device), env.privileged_size, self.agent, job.seed, mirror, self.terms(job))
