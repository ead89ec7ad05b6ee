"""Goal reaching without rewards: Park et al. 2024, "Foundation Policies with Hilbert Representations" (HILP, arXiv
2402.15567).

Policy: tanh-Gaussian of the state and a direction in the embedding; embedding: goal-conditioned values as distances,
learned by expectiles; critics: as `iql`, with motion along a direction as the reward; data: episodes of any kind, whose
rewards and goals are not used. Here one embedding reads the achieved goal as set in GoalConfig; the paper embeds the
whole state, and takes the smaller value of two embeddings."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from policies.bundle import Bundle
from policies.hilbert import HilbertConfig, HilbertPolicy
from robot_rl.data.sources import Hindsight
from robot_rl.learning.algorithms.hilp import HILP, HILPConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.training.goals import GoalConfig, Goals
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class HilbertSkills(Recipe):
    """Learn to reach any state in the data; the policy then reaches the goals given in the state."""

    reduced = "embeds the goal's coordinates; no planning"
    policy: HilbertConfig = HilbertConfig(initial_std=0.3)
    agent: HILPConfig = HILPConfig()
    training: SupervisedConfig = SupervisedConfig(updates=20_000, demos="all")
    goal: GoalConfig = GoalConfig()
    sim_idle_during_update: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("demonstrations",)

    def build(self, job: Job, env: Any = None) -> HILP:
        if job.info.extra_inputs:
            raise ConfigError(f"recipe hilp reads observation.state alone; {job.info.task} shows more")
        torch.manual_seed(job.seed)
        policy = HilbertPolicy(job.size, self.policy, Goals(self.goal, job.info.state).indices).to(job.device)
        return HILP(policy, self.agent, self.goal.tolerance, job.seed)

    def train(self, job: Job) -> Bundle:
        agent = self.build(job)
        data = Hindsight.of(job.demonstrations(demos=self.training.demos), job.device)
        progress = job.counting("updates", self.training.updates)
        train_supervised(agent, data, self.training, job.opened, job.seed, progress)
        return job.bundle(agent)
