"""Imitation, offline RL, online RL and distillation: Lei et al. 2025, "RL-100" (arXiv 2510.14830).

Policy: diffusion over action chunks, finally with one denoising step; stages: cloning as in diffusion-bc, offline
rounds of dppo's loss with iql's critics and advantages and an acceptance test, dppo online with one value, consistency
distillation; data: demonstrations, then on-policy; reward: success."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from policies.bundle import Bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.consistency import Distillation, student_of
from robot_rl.learning.algorithms.dppo import DPPO, denoiser_from
from robot_rl.recipes.dppo import DenoisingPPO
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need
from robot_rl.rewards import reward_source
from robot_rl.training.gated import OfflineConfig, improve_offline
from robot_rl.training.supervised import SupervisedConfig, clone
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class RL100(DenoisingPPO):
    """Clone, improve offline, fine-tune online, then distill to one denoising step."""

    reduced = "no rollouts join the data; the gate judges by the values that trained"
    policy: DiffusionConfig = DiffusionConfig()
    cloning: CloningConfig = CloningConfig()
    """Optimizer settings of imitation and distillation."""
    imitation: SupervisedConfig = SupervisedConfig()
    offline: OfflineConfig = OfflineConfig()
    distillation: SupervisedConfig = SupervisedConfig(updates=6_000)
    needs: ClassVar[tuple[Need, ...]] = ("demonstrations", "environment")

    def build(self, job: Job, env: Any = None) -> DPPO:
        torch.manual_seed(job.seed)
        policy = denoiser_from(DiffusionPolicy(job.size, self.policy), self.agent.denoising_steps).to(job.device)
        return DPPO(policy, 0, self.agent, job.seed)  # recorded states have no privileged part

    def train(self, job: Job) -> Bundle:
        if (reward := self.training.reward) == "terms":
            raise ConfigError("rl-100 has one value, of the whole reward; use --training.reward task or success")
        demonstrations = job.demonstrations(demos=self.imitation.demos)
        agent, run = self.build(job), job.opened
        if run.load() is None:
            imitation = Cloning(agent.policy, self.cloning, self.imitation.updates)
            clone(imitation, demonstrations, self.imitation.updates, self.imitation.batch, run, job.seed)
            agent.policy.freeze_first()
            every = job.demonstrations(reward, "all")
            improve_offline(agent, every, reward_source(reward, job.info), self.offline, run, job.seed)
        self.practise(job, agent, job.make_env(self.training.num_envs))
        student = student_of(agent.policy).to(job.device)
        head = Distillation(student, agent.policy, self.cloning, self.distillation.updates)
        clone(head, demonstrations, self.distillation.updates, self.distillation.batch, run, job.seed)
        return job.bundle(head)
