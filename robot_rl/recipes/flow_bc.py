"""Behaviour cloning of a flow policy: Lipman et al. 2023, "Flow Matching for Generative Modeling" (arXiv 2210.02747),
on action chunks as in Black et al. 2024, pi0 (arXiv 2410.24164). Policy: flow over action chunks; loss: of
the clean chunk, from which the velocity follows."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.flow import FlowConfig, FlowPolicy
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe


@dataclass(frozen=True)
class FlowBC(CloningRecipe):
    """Clone demonstrations with a chunked flow policy."""

    policy: FlowConfig = field(default_factory=lambda: FlowConfig(prediction="sample"))

    def make_policy(self, job: Job) -> FlowPolicy:
        return FlowPolicy(job.size, self.policy)
