"""Supervised fine-tuning of a vision-language-action policy on demonstrations with instructions: Black et al. 2024, pi0
(arXiv 2410.24164), at the size of a laptop. Policy: a vision-language backbone, and a flow over chunks of actions;
loss: of the clean chunk."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from policies.base import Policy
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.words import words_of
from robot_rl.learning.algorithms.cloning import CloningConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe
from robot_rl.training.supervised import SupervisedConfig


@dataclass(frozen=True)
class VlaRecipe(CloningRecipe):
    """Clone demonstrations with a policy that sees and reads."""

    reads_instructions: ClassVar[bool] = True
    agent: CloningConfig = field(default_factory=lambda: CloningConfig(lr=1e-3, warmup=200))
    policy: Any = None
    training: SupervisedConfig = field(default_factory=lambda: SupervisedConfig(updates=6000, batch=64))

    def make_policy(self, job: Job) -> Policy:
        backbone = replace(self.policy.encoder, words=words_of(job.instructions()))
        return self.with_config(job, replace(self.policy, encoder=backbone))

    @abstractmethod
    def with_config(self, job: Job, config: Any) -> Policy:
        """Return the policy, which knows the words of the job."""


@dataclass(frozen=True)
class VlaSFT(VlaRecipe):
    """Clone demonstrations with a policy that sees and reads, and flows to its actions."""

    policy: VLAFlowConfig = field(default_factory=VLAFlowConfig)

    def with_config(self, job: Job, config: VLAFlowConfig) -> VLAFlowPolicy:
        return VLAFlowPolicy(job.size, config)
