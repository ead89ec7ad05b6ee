"""Base classes of recipes. A recipe lists components and hyperparameters; a training loop trains its agent."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from policies.actor import ActorPolicy, GaussianPolicy
from policies.base import Policy, check_class
from policies.bundle import Bundle
from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.actor_critic import Limits
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.ppo import PPO
from robot_rl.learning.parts.grasp import GraspingActorCritic, check_gripper
from robot_rl.recipes.job import Job
from robot_rl.rewards import reward_source
from robot_rl.training.off_policy import OffPolicyConfig, demo_replay, train_off_policy
from robot_rl.training.on_policy import OnPolicyConfig, train_on_policy
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.ranks import share

Need = Literal["environment", "demonstrations", "base"]


class Recipe:
    """Published method: its requirements, its agent, and the loop that trains the agent."""

    sim_idle_during_update: ClassVar[bool] = False
    """Whether simulation stands still while the agent learns, so that learning may use all cores."""
    may_use: ClassVar[tuple[Need, ...]] = ()
    """Parts of a job that the recipe can use, but does not need."""
    extendable_setting: ClassVar[str] = ""
    """Setting that may be increased when a run is resumed. Learning must not depend on the setting's value."""
    reads_instructions: ClassVar[bool] = False
    """Whether the recipe's policies read an instruction, even if a task has only one."""
    reduced: ClassVar[str] = ""
    """What the paper has and the recipe leaves out or replaces, in a few words; empty: nothing that changes what the
    method is."""
    data_parallel: ClassVar[bool] = False
    """Whether several processes of torchrun can train the recipe together."""
    needs_base: ClassVar[bool] = False
    """Whether training starts from a base policy."""
    policy_class: ClassVar[type[Policy]] = GaussianPolicy
    """Policy class that `make_policy` builds with the settings `policy`."""

    @property
    @abstractmethod
    def needs(self) -> tuple[Need, ...]:
        """Return the parts of a job that the recipe requires. They are checked before training starts."""

    def make_policy(self, job: Job) -> Policy:
        """Return the recipe's policy with initial weights, which for some recipes are those of the base."""
        return self.policy_class(job.size, self.policy)  # type: ignore[attr-defined]

    def new_policy(self, job: Job) -> Policy:
        """Return `make_policy`'s policy on the job's device; ConfigError if no bundle could restore it."""
        policy = self.make_policy(job)
        check_class(type(policy))
        return policy.to(job.device)

    @abstractmethod
    def build(self, job: Job, env: Any = None) -> Any:
        """Return the agent before training; `env` is the job's environment, if the recipe needs an environment."""

    @abstractmethod
    def train(self, job: Job) -> Bundle:
        """Train the agent; return the bundle of its policy, value functions and settings."""


@dataclass(frozen=True)
class OffPolicyRecipe(Recipe):
    """Off-policy agent that learns in a vector environment, and from demonstrations if `training.demo_share` or
    `training.offline_updates` is above 0."""

    agent: Any
    """Hyperparameters of `agent_class`."""
    training: OffPolicyConfig = OffPolicyConfig()
    agent_class: ClassVar[type[Any]] = GraspingActorCritic
    extendable_setting: ClassVar[str] = "training.steps"

    @property
    def needs(self) -> tuple[Need, ...]:
        base: tuple[Need, ...] = ("base",) if self.needs_base else ()
        return (*base, "environment", "demonstrations") if self.replays_demos else (*base, "environment")

    @property
    def replays_demos(self) -> bool:
        """Return whether batches have transitions of demonstrations."""
        return bool(self.training.demo_share or self.training.offline_updates)

    def build(self, job: Job, env: Any = None) -> Any:
        torch.manual_seed(job.seed)
        policy = self.new_policy(job)
        if isinstance(policy, ActorPolicy):
            check_gripper(policy, job.info.actions.names)
        return self.agent_class(policy, self.agent, job.seed, self.value_limits(job))

    def value_limits(self, job: Job) -> Limits:
        """Return the least and greatest possible return of the scaled rewards."""
        low, high = reward_source(self.training.reward, job.info).limits(self.agent.discount)
        return self.training.reward_scale * low, self.training.reward_scale * high

    def train(self, job: Job) -> Bundle:
        env = job.make_env(self.training.num_envs)
        agent = self.build(job, env)
        demos = None
        if self.replays_demos:
            episodes = job.demonstrations(self.training.reward, self.training.demos)
            if not self.needs_base:  # a base has a fitted normalizer
                agent.policy.fit(Demonstrations.of(episodes, job.device).columns)
            for episode in episodes:
                episode["reward"] = self.training.reward_scale * episode["reward"]
            rows = self.training.capacity if self.training.keep_successes else 0
            demos = demo_replay(agent, episodes, torch.Generator().manual_seed(job.seed), rows)
        train_off_policy(
            env, agent, demos, reward_source(self.training.reward, job.info), self.training, job.opened, job.seed,
            job.counting("steps", self.training.offline_updates + self.training.steps),
        )  # fmt: skip
        env.close()
        return job.bundle(agent)


class OnPolicyRecipe(Recipe):
    """Recipe whose policy learns from its own rollouts in many environments."""

    training: OnPolicyConfig
    sim_idle_during_update: ClassVar[bool] = True
    extendable_setting: ClassVar[str] = "training.steps"

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("base", "environment") if self.needs_base else ("environment",)

    def train(self, job: Job) -> Bundle:
        env = job.make_env(share(self.training.num_envs, "--training.num-envs"))
        agent = self.build(job, env)
        self.practise(job, agent, env)
        return job.bundle(agent)

    def terms(self, job: Job) -> int | None:
        """Return the number of reward terms; None if the reward is one number."""
        return len(job.info.rewards) if self.training.reward == "terms" else None

    def practise(self, job: Job, agent: PPO, env: Any) -> None:
        """Train the agent in the environment, then close the environment."""
        reward = reward_source(self.training.reward, job.info)
        steps = job.counting("environment steps", self.training.steps)
        train_on_policy(env, agent, reward, self.training, job.opened, job.seed, steps)
        env.close()


@dataclass(frozen=True)
class CloningRecipe(Recipe):
    """Recipe that clones a policy from demonstrations."""

    agent: CloningConfig = CloningConfig()
    training: SupervisedConfig = SupervisedConfig()
    sim_idle_during_update: ClassVar[bool] = True
    data_parallel: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("demonstrations",)

    def build(self, job: Job, env: Any = None) -> Cloning:
        torch.manual_seed(job.seed)
        return Cloning(self.new_policy(job), self.agent, self.training.updates)

    def train(self, job: Job) -> Bundle:
        # No other variable refers to the episodes, whose pictures take most of the memory.
        data = Demonstrations.of(job.demonstrations(demos=self.training.demos), job.device)
        agent = self.build(job)
        progress = job.counting("updates", self.training.updates)
        train_supervised(agent, data, self.training, job.opened, job.seed, progress)
        return job.bundle(agent)
