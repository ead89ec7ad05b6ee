"""Base classes of recipes: a recipe names components and hyperparameters, and one of the loops trains its agent."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from policies.actor import ActorPolicy
from policies.base import Policy
from policies.bundle import Bundle
from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.ppo import PPO
from robot_rl.learning.parts.grasp import GraspingActorCritic, check_gripper
from robot_rl.recipes.job import Job
from robot_rl.rewards import reward_source
from robot_rl.training.choosing import InstructionCurriculum
from robot_rl.training.group import GroupConfig, train_groups
from robot_rl.training.off_policy import OffPolicyConfig, demo_replay, train_off_policy
from robot_rl.training.on_policy import OnPolicyConfig, train_on_policy
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.errors import ConfigError

Need = Literal["environment", "demonstrations", "base"]


class Recipe:
    """A published method: its requirements, the agent it builds, and the loop that trains it."""

    sim_idle_during_update: ClassVar[bool] = False
    """No simulation runs while it learns, so that learning may use every core."""
    may_use: ClassVar[tuple[Need, ...]] = ()
    """Parts of a job that it uses where they are named."""
    extendable_setting: ClassVar[str] = ""
    """A setting that may be increased on resume; learning must not depend on it."""
    reads_instructions: ClassVar[bool] = False
    """Its policies need an instruction, even if it is always the same."""

    @property
    @abstractmethod
    def needs(self) -> tuple[Need, ...]:
        """Return the parts of a job that it requires; they are checked before any work begins."""

    @abstractmethod
    def build(self, job: Job, env: Any = None) -> Any:
        """Return the agent with fresh weights; `env` is one that the job made, if it needs an environment."""

    @abstractmethod
    def train(self, job: Job) -> Bundle:
        """Train the agent; return the bundle."""


@dataclass(frozen=True)
class OffPolicyRecipe(Recipe):
    """An off-policy agent in a vector environment, with demonstrations where `training.demo_share` is above 0."""

    agent: Any
    """Hyperparameters of `agent_class`."""
    training: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    agent_class: ClassVar[type[Any]] = GraspingActorCritic
    extendable_setting: ClassVar[str] = "training.steps"

    @property
    def needs(self) -> tuple[Need, ...]:
        reads = self.training.demo_share or self.training.offline_updates
        return ("environment", "demonstrations") if reads else ("environment",)

    @abstractmethod
    def make_policy(self, job: Job) -> Policy:
        """Return the policy with fresh weights."""

    def build(self, job: Job, env: Any = None) -> Any:
        torch.manual_seed(job.seed)
        limits = reward_source(self.training.reward, job.info).limits(self.agent.discount)
        policy = self.make_policy(job).to(job.device)
        if isinstance(policy, ActorPolicy):
            check_gripper(policy, job.info.actions.names)
        return self.agent_class(policy, self.agent, job.seed, limits)

    def train(self, job: Job) -> Bundle:
        env = job.make_env(self.training.num_envs)
        agent = self.build(job, env)
        demos = None
        if "demonstrations" in self.needs:
            episodes = job.demonstrations(self.training.reward, self.training.demos == "successes")
            if "base" not in self.needs:  # a base brings its normalizer
                agent.policy.fit(Demonstrations.of(episodes, job.device).columns)
            rows = self.training.capacity if self.training.keep_successes else 0
            demos = demo_replay(agent, episodes, torch.Generator().manual_seed(job.seed), rows)
        train_off_policy(
            env, agent, demos, reward_source(self.training.reward, job.info), self.training, job.opened, job.seed,
            job.counting("steps", self.training.offline_updates + self.training.steps),
        )  # fmt: skip
        env.close()
        return job.bundle(agent)


class OnPolicyRecipe(Recipe):
    """A policy that learns from its own rollouts in many environments."""

    training: OnPolicyConfig
    sim_idle_during_update: ClassVar[bool] = True
    extendable_setting: ClassVar[str] = "training.steps"

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("environment",)

    def train(self, job: Job) -> Bundle:
        env = job.make_env(self.training.num_envs)
        agent = self.build(job, env)
        self.practise(job, agent, env)
        return job.bundle(agent)

    def terms(self, job: Job) -> int | None:
        """Return how many terms the reward has; None if it is one number."""
        return len(job.info.rewards) if self.training.reward == "terms" else None

    def practise(self, job: Job, agent: PPO, env: Any) -> None:
        """Train the agent in the environment, and close that."""
        reward = reward_source(self.training.reward, job.info)
        steps = job.counting("environment steps", self.training.steps)
        train_on_policy(env, agent, reward, self.training, job.opened, job.seed, steps)
        env.close()


@dataclass(frozen=True)
class GroupRecipe(Recipe):
    """A policy that learns by comparing its episodes in groups."""

    training: GroupConfig = field(default_factory=GroupConfig)
    sim_idle_during_update: ClassVar[bool] = True
    extendable_setting: ClassVar[str] = "training.rounds"

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("base", "environment")

    def train(self, job: Job) -> Bundle:
        env = job.make_env(self.training.num_envs)
        if isinstance(env, InstructionCurriculum):
            raise ConfigError("groups that always or never succeed teach nothing as it is; leave out --choose")
        agent = self.build(job, env)
        train_groups(env, agent, self.training, job.opened, job.seed, job.counting("rounds", self.training.rounds))
        env.close()
        return job.bundle(agent)


@dataclass(frozen=True)
class CloningRecipe(Recipe):
    """A policy cloned from demonstrations."""

    agent: CloningConfig = field(default_factory=CloningConfig)
    training: SupervisedConfig = field(default_factory=SupervisedConfig)
    sim_idle_during_update: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("demonstrations",)

    @abstractmethod
    def make_policy(self, job: Job) -> Policy:
        """Return the policy with fresh weights."""

    def build(self, job: Job, env: Any = None) -> Cloning:
        torch.manual_seed(job.seed)
        return Cloning(self.make_policy(job).to(job.device), self.agent, self.training.updates)

    def train(self, job: Job) -> Bundle:
        # Nothing else holds the episodes, whose pictures take most of the memory.
        data = Demonstrations.of(job.demonstrations(successes=self.training.demos == "successes"), job.device)
        agent = self.build(job)
        train_supervised(
            agent, data, self.training, job.opened, job.seed, job.counting("updates", self.training.updates)
        )
        return job.bundle(agent)
