"""Cloning with an operator who takes over: Kelly et al. 2019, "HG-DAgger: Interactive Imitation Learning with Human
Experts" (arXiv 1810.02890).

Data: demonstrations, and the operator's actions in takeovers. In simulation: policy and loss as `bc`; the policy is
cloned again from fresh weights as data arrive. On a robot (`robot-rl finetune`): any cloned policy, such as one of
`vla-sft`, with its own loss, goes on from its weights; half of each batch are corrections. Unlike a `hil-serl` policy,
it becomes no better than the operator."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from policies.actor import GaussianPolicy
from policies.base import Policy
from policies.bundle import Bundle
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.dataset import Dataset
from robot_rl.data.recording import load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.operators.scripted import OperatorConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.training.human_in_the_loop import DaggerConfig, aggregate
from robot_rl.training.learner import CloningLearner, CloningSessionConfig
from robot_rl.util.errors import ConfigError

ENDLESS = 10**9
"""Updates of a session, whose learning rate does not decay."""


@dataclass(frozen=True)
class HGDAgger(Recipe):
    """Clone demonstrations and the operator's actions in takeovers."""

    policy: GaussianConfig = GaussianConfig(std=0.1)
    agent: CloningConfig = CloningConfig()
    training: DaggerConfig = DaggerConfig()
    operator: OperatorConfig = OperatorConfig()
    """Scripted operator who takes over from the policy."""
    session: CloningSessionConfig = CloningSessionConfig()
    """Learning beside a robot."""

    @property
    def needs(self) -> tuple[Need, ...]:
        base: tuple[Need, ...] = ("base",) if self.operator.rule == "value-gap" else ()
        return (*base, "demonstrations", "environment")

    def build(self, job: Job, env: object = None) -> Cloning:
        torch.manual_seed(job.seed)
        return Cloning(GaussianPolicy(job.size, self.policy).to(job.device), self.agent, self.training.updates)

    def prepared(self, bundle: Bundle) -> Policy:
        """Return the bundle's policy; ConfigError if it was not cloned."""
        if not hasattr(bundle.policy, "loss"):
            raise ConfigError(f"{bundle.label} has no loss on actions, so it cannot be cloned: use hil-serl")
        return bundle.policy

    def learner(self, bundle: Bundle, dataset: Dataset | Path, folder: Path, seed: int) -> CloningLearner:
        """Return the learner that the learner process runs, with demonstrations from `dataset`."""
        torch.manual_seed(seed)
        agent = Cloning(self.prepared(bundle), replace(self.agent, lr=self.session.lr), ENDLESS)
        info = EnvInfo.of(Pipeline(bundle.interface))
        return CloningLearner(agent, info, load_episodes(dataset, info), self.session, folder, seed)

    def train(self, job: Job) -> Bundle:
        env, demos = job.operated(self.operator), job.demonstrations()
        agent = aggregate(
            env, lambda: self.build(job), demos, self.training, job.opened, job.seed,
            job.counting("environment steps", self.training.steps),
        )  # fmt: skip
        env.close()
        return job.bundle(agent)
