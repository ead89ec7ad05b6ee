"""Supervised fine-tuning of a vision-language-action policy that writes its actions as tokens: Kim et al. 2024, OpenVLA
(arXiv 2406.09246), at the size of a laptop. Policy: a vision-language backbone, and a causal decoder of tokens; loss:
cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.vla.tokens import VLATokensConfig, VLATokensPolicy
from robot_rl.recipes.job import Job
from robot_rl.recipes.vla_sft import VlaRecipe


@dataclass(frozen=True)
class VlaTokens(VlaRecipe):
    """Clone demonstrations with a policy that sees and reads, and writes its actions as tokens."""

    policy: VLATokensConfig = field(default_factory=VLATokensConfig)

    def with_config(self, job: Job, config: VLATokensConfig) -> VLATokensPolicy:
        return VLATokensPolicy(job.size, config)
