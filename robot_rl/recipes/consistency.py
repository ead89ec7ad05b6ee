"""One-step distillation: Song et al. 2023, "Consistency Models" (arXiv 2303.01469), as RL-100 uses it for deployment
(Lei et al. 2025, arXiv 2510.14830).

Policy: the base's network and weights, with a single sampling step; loss: squared distance from the frozen base's chunk
for the same noise; data: observations of demonstrations."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from policies.networks.chunks import ChunkPolicy
from robot_rl.learning.algorithms.cloning import CloningConfig
from robot_rl.learning.algorithms.consistency import Distillation, student_of
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe, Need
from robot_rl.training.supervised import SupervisedConfig


@dataclass(frozen=True)
class Consistency(CloningRecipe):
    """Distill a diffusion or flow policy into a policy that evaluates its network once."""

    reduced = "one step regresses the teacher's samples"
    agent: CloningConfig = CloningConfig()
    training: SupervisedConfig = SupervisedConfig(updates=6_000)
    needs: ClassVar[tuple[Need, ...]] = ("base", "demonstrations")

    def make_policy(self, job: Job) -> ChunkPolicy:
        return student_of(job.require_base().policy)

    def build(self, job: Job, env: Any = None) -> Distillation:
        torch.manual_seed(job.seed)
        teacher = job.require_base().policy.to(job.device)
        assert isinstance(teacher, ChunkPolicy)
        return Distillation(self.make_policy(job).to(job.device), teacher, self.agent, self.training.updates)
