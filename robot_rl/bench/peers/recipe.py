"""Shared parts of recipes whose learner is another library's.

Only the environment, the run folder, the metrics and the evaluation are ours. An interrupted run starts again.
"""

from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from policies.base import Policy
from policies.bundle import Bundle
from robot_rl.interface.environment import EnvInfo, EnvWrapper
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need, Recipe
from robot_rl.rewards import RewardName, reward_source
from robot_rl.training.metrics import EpisodeMetrics, counts, report
from robot_rl.util.errors import ConfigError, Interrupted
from robot_rl.util.limits import PositiveInt
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class PeerTraining:
    """Length of the training, and its environments."""

    steps: PositiveInt = 60_000
    """Total number of environment steps."""
    num_envs: PositiveInt = 1
    """Number of parallel environments."""
    reward: RewardName = "task"
    """Reward source: the task's own reward, or success (1 when the episode succeeds, else 0)."""
    log_every: PositiveInt = 1_000
    """Environment steps between two rows of metrics."""


@dataclass(frozen=True)
class PeerConfig:
    algorithm: str
    hidden: tuple[int, ...]
    """Widths of the hidden layers."""


def require_state(info: EnvInfo) -> None:
    """Raise ConfigError if the task also has pictures or instructions."""
    if info.extra_inputs:
        raise ConfigError(f"other libraries' learners read the state alone, and {info.task} also has pictures or "
                          "instructions; take another task")  # fmt: skip


class PeerEnv(EnvWrapper):
    """Environment that pays the chosen reward, logs metrics, and ends the training at a stop signal."""

    def __init__(self, job: Job, training: PeerTraining, stagger: bool = False):
        """`stagger`: the first episodes begin at different times, as in our on-policy loop."""
        info = job.info
        require_state(info)
        super().__init__(job.make_env(training.num_envs))
        self.job, self.training, self.stagger, self.count = job, training, stagger, 0
        self.reward = reward_source(training.reward, info)
        self.episodes = EpisodeMetrics(self.env.num_envs, first_of_each=not stagger)
        self.progress = job.counting("environment steps", training.steps)
        job.opened.load()

    def begin(self) -> dict[str, Tensor]:
        """Start an episode in every environment."""
        options = {"stagger": True} if self.stagger else {}
        observation: dict[str, Tensor] = self.env.reset(seed=training_seed(self.job.seed), options=options)[0]
        return observation

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        observation, task_reward, terminated, truncated, infos = self.env.step(actions)
        reward = self.reward(task_reward, infos)
        self.episodes.add(reward, terminated | truncated, infos)
        run, every, before = self.job.opened, self.training.log_every, self.count
        self.count += self.env.num_envs
        if self.count // every > before // every or before < self.training.steps <= self.count:
            report(run, self.count, self.episodes.summary() | counts(self.env, self.count), self.progress)
        if run.stop_signal:
            raise Interrupted(f"stopped at step {self.count}; another library's learner starts again", run.stop_signal)
        return observation, reward, terminated, truncated, infos


class PeerPolicy(Policy):
    """Policy of another library, which acts by its mean."""

    config_class = PeerConfig
    horizon = execute = 1

    @abstractmethod
    def mean(self, state: Tensor) -> Tensor:
        """Return actions (B, A) in states (B, D)."""

    def act(self, observation: dict[str, Tensor], rng: torch.Generator) -> Tensor:
        return self.mean(observation[STATE]).clamp(-1, 1)[:, None]


@dataclass(frozen=True)
class PeerRecipe(Recipe):
    """Learner of another library."""

    training: PeerTraining = PeerTraining()

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("environment",)

    @abstractmethod
    def learn(self, job: Job) -> PeerPolicy:
        """Train; return the policy."""

    def train(self, job: Job) -> Bundle:
        policy, info = self.learn(job), job.info
        return Bundle(policy, info.interface, info.robot, agent=asdict(self), task=info.task, described=info)


def privileged(observation: dict[str, Tensor]) -> Tensor:
    """Return what only critics read, (n, P), followed by the state; the state alone if the task has no more."""
    return torch.cat([observation[key] for key in (PRIVILEGED, STATE) if key in observation], 1)
