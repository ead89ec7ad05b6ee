"""Preferences between episodes of a vision-language-action policy: Zhang et al. 2024, "GRAPE" (arXiv 2411.19309).

Policy: a vla-tokens base, whose decoder learns; no critic: better episodes are preferred to worse ones that began
alike; data: groups of episodes; reward: success, then speed, then the policy's own confidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from robot_rl.learning.algorithms.grape import GRAPE, GRAPEConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import GroupRecipe
from robot_rl.recipes.vla_rl import writer


@dataclass(frozen=True)
class Preferences(GroupRecipe):
    """Improve a policy that writes tokens by preferring its better episodes."""

    agent: GRAPEConfig = field(default_factory=GRAPEConfig)

    def build(self, job: Job, env: Any = None) -> GRAPE:
        torch.manual_seed(job.seed)
        return GRAPE(writer(job.require_base().policy).to(job.device), self.agent, job.seed)
