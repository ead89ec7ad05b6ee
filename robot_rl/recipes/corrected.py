"""Recipes that learn from a person's corrections: on a robot by `finetune`, in simulation by `train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from policies.bundle import Bundle
from policies.residual import ResidualPolicy, residual_from
from robot_rl.data.recording import load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.actor_critic import ActorCritic, ActorCriticConfig, check_critics
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.rewards import SuccessReward
from robot_rl.training.human_in_the_loop import HumanInTheLoopConfig, Learner
from robot_rl.training.off_policy import demo_replay
from robot_rl.training.practice import practise


@dataclass(frozen=True)
class CorrectedRecipe(Recipe):
    """An actor-critic that goes on from a bundle, with a person who takes over."""

    agent: ActorCriticConfig = field(default_factory=ActorCriticConfig)
    training: HumanInTheLoopConfig = field(default_factory=HumanInTheLoopConfig)
    needs: ClassVar[tuple[Need, ...]] = ("base", "demonstrations", "environment")

    def policy(self, bundle: Bundle) -> ResidualPolicy:
        """Return the bundle's policy, ready to go on learning; ConfigError if it or its critics cannot."""
        if bundle.critic:
            check_critics(self.agent, bundle.agent)
        return residual_from(bundle.policy)

    def from_bundle(self, bundle: Bundle, seed: int) -> ActorCritic:
        """Return an agent that goes on from a bundle's policy and critics."""
        torch.manual_seed(seed)
        agent = ActorCritic(self.policy(bundle), self.agent, seed, SuccessReward().limits(self.agent.discount))
        if bundle.critic:
            agent.critic.load_state_dict(bundle.critic)
            agent.target.load_state_dict(bundle.critic)
        return agent

    def learner(self, bundle: Bundle, dataset: Path, folder: Path, seed: int) -> Learner:
        """Return the learner process's part, with demonstrations from `dataset`."""
        info, agent = EnvInfo.of(Pipeline(bundle.interface)), self.from_bundle(bundle, seed)
        rng = torch.Generator().manual_seed(seed)
        demos = demo_replay(agent, load_episodes(dataset, info), rng, self.training.capacity)
        return Learner(agent, info, demos, self.training, folder, seed)

    def build(self, job: Job, env: Any = None) -> ActorCritic:
        return self.from_bundle(job.improvable(), job.seed)

    def train(self, job: Job) -> Bundle:
        env = job.overridden()
        learner = self.learner(job.improvable(), job.dataset, job.opened.folder, job.seed)
        practise(env, learner, job.opened, job.seed, job.counting("environment steps", self.training.steps))
        env.close()
        return job.bundle(learner.agent)
