"""Coarse-to-fine Q-network: Seo et al. 2024, "Continuous Control with Coarse-to-fine Reinforcement Learning" (CQN,
arXiv 2407.07787).

Policy: the bin of largest value in each dimension, at 3 levels of 5 bins; critic: one dueling C51 network, averaged; no
actor; data: half demonstrations, half online, and successful episodes join the demonstrations; reward: success. The
paper's settings, for hours on a GPU, are learning rate 5e-5, weight decay 0.1, batches of 512, 1-step returns,
exploration noise 0.01."""

import math
from dataclasses import dataclass, replace

from policies.coarse_to_fine import Atoms, CoarseToFinePolicy
from policies.networks.bins import BinsConfig
from robot_rl.learning.algorithms.cqn import CQN, CQNConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import ONE_ENV, OffPolicyConfig
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class CoarseToFineQ(OffPolicyRecipe):
    """Learn values of action bins from demonstrations and online data, without an actor."""

    reduced = "a state, no pictures; 3-step returns, larger noise"
    policy: BinsConfig = BinsConfig()
    agent: CQNConfig = CQNConfig(lr=1e-3, n_step=3, noise=0.2)
    training: OffPolicyConfig = replace(ONE_ENV, batch=64, keep_successes=True)
    agent_class = CQN

    def make_policy(self, job: Job) -> CoarseToFinePolicy:
        c, (low, high) = self.agent, self.value_limits(job)
        low = low if c.value_low is None else c.value_low
        high = high if c.value_high is None else c.value_high
        if not (math.isfinite(low) and low < high):
            raise ConfigError("cqn needs the range of returns: set it with --agent.value-low and --agent.value-high")
        return CoarseToFinePolicy(job.size, self.policy, Atoms(c.atoms, low, high))
