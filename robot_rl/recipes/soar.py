"""Autonomous improvement: Zhou et al. 2024, "Autonomous Improvement of Instruction Following Skills via Foundation
Models" (SOAR, arXiv 2407.20635).

Policy and loss: as `bc`, with goals in the state; data: demonstrations, and episodes of practice towards chosen goals,
all relabelled with the goals that they achieve. After each round of practice the policy is cloned again from fresh
weights. A goal is a position, in place of the paper's subgoal pictures."""

from dataclasses import dataclass

import torch

from policies.actor import GaussianPolicy
from policies.bundle import Bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.training.autonomous import AutonomousConfig, improve_alone
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class SOAR(Recipe):
    """Practise towards goals that the method chooses, and clone the episodes, relabelled with their achieved goals."""

    reduced = "goals are positions, no pictures; success by distance, no language model"
    policy: GaussianConfig = GaussianConfig(hidden=(64, 64), std=0.1)
    agent: CloningConfig = CloningConfig()
    training: AutonomousConfig = AutonomousConfig()

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("demonstrations", "environment")

    def build(self, job: Job, env: object = None) -> Cloning:
        torch.manual_seed(job.seed)
        return Cloning(GaussianPolicy(job.size, self.policy).to(job.device), self.agent, self.training.updates)

    def train(self, job: Job) -> Bundle:
        if job.info.extra_inputs:
            raise ConfigError(f"recipe soar practises on observation.state alone; {job.info.task} shows more")
        env = job.make_env(self.training.num_envs)
        agent = improve_alone(
            env, lambda: self.build(job), job.demonstrations(demos="all"), self.training, job.opened, job.seed,
            job.counting("rounds", max(1, self.training.rounds)),
        )  # fmt: skip
        env.close()
        return job.bundle(agent)
