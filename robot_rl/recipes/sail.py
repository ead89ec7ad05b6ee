"""Self-adapting improvement loop: Luo et al. 2025, "Self-Adapting Improvement Loops for Robotic Learning" (SAIL, arXiv
2506.06658).

Policy: plans of states, denoised with the weighted score of a small model and of a frozen prior, and inverse dynamics;
loss: denoising of the states that follow in the data, with a later state as the goal; data: demonstrations, then also
own episodes of practice. The prior is the small model of the base, a planner trained on other data with 0 rounds.
Practice goes to goals that are chosen as in `soar`; the paper practises one task."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from policies.bundle import Bundle
from policies.planner import Planner, PlannerConfig
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.training.goals import Goals
from robot_rl.training.self_improvement import SelfImprovementConfig, improve_planner
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class SAIL(Recipe):
    """Plan states with own and prior knowledge at once, execute, and learn from the own episodes."""

    reduced = "plans are states, no videos; goals are positions, no text; scores are summed without guidance"
    policy: PlannerConfig = PlannerConfig()
    agent: CloningConfig = CloningConfig()
    training: SelfImprovementConfig = SelfImprovementConfig()
    may_use: ClassVar[tuple[Need, ...]] = ("base",)
    policy_class: ClassVar[type[Planner]] = Planner

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("demonstrations", "environment") if self.training.rounds else ("demonstrations",)

    def make_policy(self, job: Job) -> Planner:
        if job.info.extra_inputs:
            raise ConfigError(f"recipe sail plans observation.state alone; {job.info.task} shows more")
        indices = Goals(self.training.goal, job.info.state).indices
        if job.base is None:
            if self.policy.weight or self.policy.initial == "prior":
                raise ConfigError(
                    "there is no prior: name a planner with --base, or set --policy.weight 0 and --policy.initial fresh"
                )
            return Planner(job.size, self.policy, indices)
        base = job.require_base()
        if not isinstance(base.policy, Planner):
            raise ConfigError(f"{base.label} plans no states; train a prior with --recipe sail --training.rounds 0")
        planner = Planner(job.size, self.policy, indices, base.policy.config.plan)
        try:
            planner.adopt(base.policy)
        except ValueError as error:
            raise ConfigError(f"--base {base.label}: {error}") from error
        return planner

    def build(self, job: Job, env: object = None) -> Cloning:
        torch.manual_seed(job.seed)
        return Cloning(self.make_policy(job).to(job.device), self.agent, self.training.updates)

    def train(self, job: Job) -> Bundle:
        env = job.make_env(self.training.num_envs) if self.training.rounds else None
        policy = self.build(job).policy
        agent = improve_planner(
            env, job.info, lambda updates: Cloning(policy, self.agent, updates),
            job.demonstrations(demos=self.training.demos), self.training, job.opened, job.seed,
            job.counting("rounds", max(1, self.training.rounds)),
        )  # fmt: skip
        if env is not None:
            env.close()
        return job.bundle(agent)
