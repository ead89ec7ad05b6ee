"""Recipes that learn from a person's corrections: on a robot by `finetune`, in simulation by `train`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.actor import ActorPolicy, GaussianPolicy, gaussian_from
from policies.bundle import Bundle
from policies.networks.gaussian import GaussianConfig
from policies.residual import residual_from
from robot_rl.data.dataset import Dataset
from robot_rl.data.recording import load_episodes
from robot_rl.data.sources import Demonstrations
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.parts.critics import check_critics
from robot_rl.learning.parts.grasp import GraspingActorCritic, check_gripper
from robot_rl.operators.scripted import OperatorConfig
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.rewards import SuccessReward, TakeoverReward
from robot_rl.training.human_in_the_loop import practise
from robot_rl.training.learner import HumanInTheLoopConfig, OffPolicyLearner
from robot_rl.training.off_policy import demo_replay
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class CorrectedRecipe(Recipe):
    """Actor-critic with a person who takes over. Learning starts from a bundle or, in simulation, also from scratch."""

    agent: ActorCriticConfig = ActorCriticConfig()
    training: HumanInTheLoopConfig = HumanInTheLoopConfig()
    gaussian: GaussianConfig = GaussianConfig(initial_std=0.5)
    """Settings of a policy that starts from scratch. For a bundle's policy, only `grasp`, the gripper critic, counts,
    and for a Gaussian one also `initial_std`."""
    operator: OperatorConfig = OperatorConfig()
    """Scripted operator in simulation; on a robot the operator is a person."""
    may_use: ClassVar[tuple[Need, ...]] = ("base",)
    reward: ClassVar[SuccessReward | TakeoverReward] = SuccessReward()

    @property
    def needs(self) -> tuple[Need, ...]:
        base: tuple[Need, ...] = ("base",) if self.operator.rule == "value-gap" else ()
        return (*base, "demonstrations", "environment") if self.training.demo_share else (*base, "environment")

    def prepared(self, bundle: Bundle) -> ActorPolicy:
        """Return the bundle's policy, prepared for learning; ConfigError if the policy or the bundle's critics do not
        fit this recipe."""
        if self._continues_critics(bundle):
            check_critics(self.agent, bundle.agent)
        if isinstance(bundle.policy, GaussianPolicy):
            return gaussian_from(bundle.policy, self.gaussian.initial_std, self.gaussian.grasp)
        return residual_from(bundle.policy, self.gaussian.grasp)

    def _continues_critics(self, bundle: Bundle) -> bool:
        """Return whether learning continues with the bundle's critics. They value success, so the recipe's reward must
        be success."""
        return bool(bundle.critic) and isinstance(self.reward, SuccessReward)

    def _agent(self, policy: ActorPolicy, seed: int) -> ActorCritic:
        return GraspingActorCritic(policy, self.agent, seed, self.reward.limits(self.agent.discount))

    def from_bundle(self, bundle: Bundle, seed: int, device: str = "cpu") -> ActorCritic:
        """Return an agent on `device` that continues with a bundle's policy and critics."""
        torch.manual_seed(seed)
        agent = self._agent(self.prepared(bundle).to(device), seed)
        if self._continues_critics(bundle):
            try:
                agent.critic.load_state_dict(bundle.critic)
            except RuntimeError:
                raise ConfigError(
                    f"{bundle.label} has critics of another kind; take one of rlpd, sac, td3, resfit or hil-serl"
                ) from None
            agent.target.load_state_dict(bundle.critic)
        return agent

    def learner(self, bundle: Bundle, dataset: Dataset | Path, folder: Path, seed: int) -> OffPolicyLearner:
        """Return the learner that the learner process runs, with demonstrations from `dataset`."""
        info = EnvInfo.of(Pipeline(bundle.interface))
        return self._learner(self.from_bundle(bundle, seed), info, load_episodes(dataset, info), folder, seed)

    def _learner(
        self, agent: ActorCritic, info: EnvInfo, episodes: list[dict[str, Tensor]], folder: Path, seed: int
    ) -> OffPolicyLearner:
        check_gripper(agent.policy, info.actions.names)
        rng, episodes = torch.Generator().manual_seed(seed), [self.reward.relabel(e) for e in episodes]
        demos = demo_replay(agent, episodes, rng, self.training.capacity)
        return OffPolicyLearner(agent, info, demos, self.training, folder, seed, self.reward.relabel)

    def _starts_from(self, job: Job) -> bool:
        """Return whether learning starts from the job's base. For an operator of rule value-gap, the base is only the
        judge."""
        return job.base is not None and self.operator.rule != "value-gap"

    def build(self, job: Job, env: Any = None) -> ActorCritic:
        if self._starts_from(job):
            return self.from_bundle(job.require_base(), job.seed, job.device)
        torch.manual_seed(job.seed)
        return self._agent(GaussianPolicy(job.size, self.gaussian).to(job.device), job.seed)

    def train(self, job: Job) -> Bundle:
        env, agent = job.operated(self.operator), self.build(job)
        episodes = job.demonstrations() if "demonstrations" in self.needs else []
        if episodes and not self._starts_from(job):  # a base has a fitted normalizer
            agent.policy.fit(Demonstrations.of(episodes).columns)
        learner = self._learner(agent, job.info, episodes, job.opened.folder, job.seed)
        practise(env, learner, job.opened, job.seed, job.counting("environment steps", self.training.steps))
        env.close()
        return job.bundle(agent)
