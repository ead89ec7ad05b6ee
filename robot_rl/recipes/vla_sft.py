"""Supervised fine-tuning of vision-language-action policies on demonstrations with instructions, at a size for laptops:
Black et al. 2024, pi0 (arXiv 2410.24164)."""

from dataclasses import dataclass, replace
from typing import Any

from policies.base import Policy
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.tokens import VLATokensConfig, VLATokensPolicy
from policies.vla.words import words_of
from robot_rl.learning.algorithms.cloning import CloningConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe
from robot_rl.training.supervised import SupervisedConfig


@dataclass(frozen=True)
class VlaRecipe(CloningRecipe):
    """Clone demonstrations with a policy that reads pictures and instructions."""

    reads_instructions = True
    agent: CloningConfig = CloningConfig(lr=1e-3, warmup=200)
    policy: Any = None
    training: SupervisedConfig = SupervisedConfig(updates=6000, batch=64)

    def make_policy(self, job: Job) -> Policy:
        backbone = replace(self.policy.encoder, words=words_of(job.instructions()))
        return self.policy_class(job.size, replace(self.policy, encoder=backbone))


@dataclass(frozen=True)
class VlaSFT(VlaRecipe):
    """Clone demonstrations with a vision-language backbone and a flow over action chunks.

    Loss: error of the predicted clean chunk."""

    policy: VLAFlowConfig = VLAFlowConfig()
    policy_class = VLAFlowPolicy


@dataclass(frozen=True)
class VlaTokens(VlaRecipe):
    """Clone demonstrations with a vision-language backbone and a causal decoder of action tokens.

    Kim et al. 2024, OpenVLA (arXiv 2406.09246). Loss: cross-entropy of the tokens."""

    policy: VLATokensConfig = VLATokensConfig()
    policy_class = VLATokensPolicy
