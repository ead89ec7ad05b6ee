"""Q-chunking, which is better early, hands over to RLPD, which is better late: Li et al. 2025, "Reinforcement
Learning with Action Chunking" (arXiv 2507.07969), and Ball et al. 2023 (RLPD, arXiv 2302.02948).

Policies: qc's policy of chunks, then a tanh-Gaussian of single steps; critics: 2 on chunks, and 10 on steps; data: one
replay for both agents, offline updates, then half demonstrations, half online; reward: success, or the task's. The
combination of the two methods is our own."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from policies.actor import GaussianPolicy
from policies.best_of import BestOfConfig
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.best_of import BestOf
from robot_rl.learning.algorithms.switching import Switching, SwitchingConfig
from robot_rl.learning.parts.grasp import GraspingActorCritic
from robot_rl.recipes.job import Job
from robot_rl.recipes.qc import QChunking, best_of_policy
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.recipes.rlpd import RLPD
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class ChunksToSteps(OffPolicyRecipe):
    """Act in chunks at first and in single steps later; learn both from the start."""

    chunk: BestOfConfig = QChunking().policy
    step: GaussianConfig = RLPD().policy
    agent: SwitchingConfig = SwitchingConfig(QChunking().agent, RLPD().agent)
    training: OffPolicyConfig = replace(OFFLINE, offline_updates=5_000, steps=50_000)

    def build(self, job: Job, env: Any = None) -> Switching:
        if 0 < self.training.steps <= self.agent.first:
            raise ConfigError(
                f"--training.steps {self.training.steps} ends before single steps act, which begin after --agent.first "
                f"{self.agent.first}; lower --agent.first and --agent.last"
            )
        torch.manual_seed(job.seed)
        limits = self.value_limits(job)
        chunk = best_of_policy(job.size, self.chunk, self.agent.chunks).to(job.device)
        chunks = BestOf(chunk, self.agent.chunks, job.seed, limits)
        step = GaussianPolicy(job.size, self.step).to(job.device)
        return Switching(chunks, GraspingActorCritic(step, self.agent.steps, job.seed, limits), self.agent, job.seed)
