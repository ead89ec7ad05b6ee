"""Cloning with an operator who takes over: Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human
Experts" (arXiv 1810.02890).

Policy and loss: as `bc`; data: demonstrations, and the operator's actions in takeovers; schedule: the policy is cloned
again from fresh weights as data arrive. Unlike a `hil-serl` policy, it becomes no better than the operator."""

from dataclasses import dataclass

import torch

from policies.actor import GaussianPolicy
from policies.bundle import Bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.operators.scripted import OperatorConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.training.human_in_the_loop import DaggerConfig, aggregate


@dataclass(frozen=True)
class HGDAgger(Recipe):
    """Clone demonstrations and the operator's actions in takeovers."""

    policy: GaussianConfig = GaussianConfig(std=0.1)
    agent: CloningConfig = CloningConfig()
    training: DaggerConfig = DaggerConfig()
    operator: OperatorConfig = OperatorConfig()
    """Scripted operator who takes over from the policy."""

    @property
    def needs(self) -> tuple[Need, ...]:
        base: tuple[Need, ...] = ("base",) if self.operator.rule == "value-gap" else ()
        return (*base, "demonstrations", "environment")

    def build(self, job: Job, env: object = None) -> Cloning:
        torch.manual_seed(job.seed)
        return Cloning(GaussianPolicy(job.size, self.policy).to(job.device), self.agent, self.training.updates)

    def train(self, job: Job) -> Bundle:
        env, demos = job.operated(self.operator), job.demonstrations()
        agent = aggregate(
            env, lambda: self.build(job), demos, self.training, job.opened, job.seed,
            job.counting("environment steps", self.training.steps),
        )  # fmt: skip
        env.close()
        return job.bundle(agent)
