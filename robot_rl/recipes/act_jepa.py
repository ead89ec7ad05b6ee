"""Cloning with episodes without actions: Vujinovic and Kovacevic 2025, "ACT-JEPA: Novel Joint-Embedding Predictive
Architecture for Efficient Policy Representation Learning" (arXiv 2501.14622).

Policy: tanh-Gaussian with a fixed standard deviation, a chunk of actions; loss: squared error of the mean chunk, and
error of the predicted features of later observations; data: actions of demonstrations, observations of all episodes."""

from dataclasses import dataclass
from typing import Any

import torch

from policies.bundle import Bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.sources import Observed
from robot_rl.learning.algorithms.jepa import PredictiveCloning, PredictiveConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import CloningRecipe
from robot_rl.training.supervised import train_supervised
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt


@dataclass(frozen=True)
class PredictiveChunks(CloningRecipe):
    """Clone demonstrations with an encoder that also learns from episodes whose actions are not used."""

    reduced = "MLPs, no transformer; predicts a few later observations from one, not a sequence"
    policy: GaussianConfig = GaussianConfig(std=0.1, horizon=4)
    agent: PredictiveConfig = PredictiveConfig()
    labelled: NonNegativeInt = 0
    """Number of episodes, of those that training.demos selects, whose actions are cloned, the first ones; 0: all. The
    observations of all episodes of the dataset are used, of failed ones too."""

    def build(self, job: Job, env: Any = None) -> PredictiveCloning:
        torch.manual_seed(job.seed)
        return PredictiveCloning(self.make_policy(job).to(job.device), self.agent, self.training.updates)

    def data(self, job: Job) -> Observed:
        """Return the demonstrations, followed by the episodes whose actions are not used."""
        if self.training.demos == "best":
            raise ConfigError("recipe act-jepa clones successes or all episodes: leave out --training.demos best")
        episodes = job.demonstrations(demos="all")
        judged = self.training.demos == "successes" and job.info.reports_success
        chosen = [k for k, episode in enumerate(episodes) if not judged or bool(episode["reward"].any())]
        if len(chosen) < max(1, self.labelled):
            raise ConfigError(
                f"{job.dataset} holds {len(chosen)} {'successful ' * judged}episodes to clone, and --labelled is "
                f"{self.labelled}; record more"
            )
        first = chosen[: self.labelled or None]
        others = sorted(set(range(len(episodes))) - set(first))
        data = Observed.of([episodes[k] for k in [*first, *others]], job.device)
        data.demonstrated = sum(len(episodes[k]["action"]) for k in first)
        data.ahead = self.agent.ahead if self.agent.jepa else ()
        return data

    def train(self, job: Job) -> Bundle:
        data = self.data(job)
        agent = self.build(job)
        progress = job.counting("updates", self.training.updates)
        train_supervised(agent, data, self.training, job.opened, job.seed, progress)
        return job.bundle(agent)
