"""Behaviour cloning by regression: Pomerleau 1988, "ALVINN: An Autonomous Land Vehicle in a Neural Network".

Policy: tanh-Gaussian with a fixed standard deviation, one action per step; loss: squared error of the mean; data:
demonstrations. It averages where demonstrations disagree: diffusion-bc and flow-bc do not."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.actor import GaussianPolicy
from policies.networks.gaussian import GaussianConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe


@dataclass(frozen=True)
class BC(CloningRecipe):
    """Clone demonstrations by regression."""

    policy: GaussianConfig = field(default_factory=lambda: GaussianConfig(std=0.1))

    def make_policy(self, job: Job) -> GaussianPolicy:
        return GaussianPolicy(job.size, self.policy)
