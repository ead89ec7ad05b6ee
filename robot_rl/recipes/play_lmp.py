"""Latent plans from play: Lynch et al. 2020, "Learning Latent Plans from Play" (Play-LMP, arXiv 1903.01973).

Policy: a plan drawn from its proposal, held for a while and decoded step by step; loss: likelihood of a window's
actions given the plan recognized in it, and divergence of the recognized plan's distribution from the proposal; data:
windows of episodes of any kind, each with the state in which it ends as the goal. Rewards and goals in the data are not
used."""

from dataclasses import dataclass
from typing import Any, ClassVar

from policies.bundle import Bundle
from policies.play import PlayConfig, PlayPolicy
from robot_rl.data.sources import Windows
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe
from robot_rl.training.goals import GoalConfig, Goals
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class LatentPlans(CloningRecipe):
    """Learn from unlabelled play to reach any state in it; the policy then reaches the goals given in the state."""

    reduced = "goals are positions, no pictures; MLPs, no recurrent networks; a Gaussian, no mixture of logistics"
    policy: PlayConfig = PlayConfig()
    agent: CloningConfig = CloningConfig()
    training: SupervisedConfig = SupervisedConfig(updates=5_000, batch=128, demos="all")
    goal: GoalConfig = GoalConfig()
    policy_class: ClassVar[type[PlayPolicy]] = PlayPolicy

    def make_policy(self, job: Job) -> PlayPolicy:
        if job.info.extra_inputs:
            raise ConfigError(f"recipe play-lmp reads observation.state alone; {job.info.task} shows more")
        return PlayPolicy(job.size, self.policy, Goals(self.goal, job.info.state).indices)

    def train(self, job: Job) -> Bundle:
        agent: Cloning = self.build(job)
        data: Any = Windows.of(job.demonstrations(demos=self.training.demos), job.device)
        data.shortest, data.longest = self.policy.window
        progress = job.counting("updates", self.training.updates)
        train_supervised(agent, data, self.training, job.opened, job.seed, progress)
        return job.bundle(agent)
