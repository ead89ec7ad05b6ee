"""Behaviour cloning of a diffusion policy: Chi et al. 2023, "Diffusion Policy: Visuomotor Policy Learning via Action
Diffusion" (arXiv 2303.04137). Policy: diffusion over action chunks; loss: denoising; data: demonstrations."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe


@dataclass(frozen=True)
class DiffusionBC(CloningRecipe):
    """Clone demonstrations with a chunked diffusion policy."""

    policy: DiffusionConfig = field(default_factory=DiffusionConfig)

    def make_policy(self, job: Job) -> DiffusionPolicy:
        return DiffusionPolicy(job.size, self.policy)
