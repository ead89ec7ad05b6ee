"""Learners of stable-baselines3 (Raffin et al. 2021, JMLR 22) as recipes.

Settings that are not named here have the defaults of stable-baselines3.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Box
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor

from policies.base import Size
from robot_rl.bench.peers.recipe import PeerConfig, PeerEnv, PeerPolicy, PeerRecipe, PeerTraining
from robot_rl.interface.observation_spec import STATE
from robot_rl.recipes.job import Job
from robot_rl.util.limits import PositiveFloat, PositiveInt

KINDS: dict[str, Any] = {"sac": SAC, "td3": TD3, "ppo": PPO}
CLIP = 10.0
"""Limit of standardized observations in `VecNormalize`."""


def spaces(size: Size) -> tuple[Box, Box]:
    """Return the spaces of observations and actions."""
    return Box(-np.inf, np.inf, (size.observation,), np.float32), Box(-1.0, 1.0, (size.action,), np.float32)


class Batched(VecEnv):
    """Adapter of our vector environment to stable-baselines3."""

    def __init__(self, env: Any):
        """`env`: environment whose `begin` starts the episodes, see `PeerEnv`."""
        self.env = env
        super().__init__(env.num_envs, *spaces(Size(env.info.observation, env.info.action)))

    def reset(self) -> np.ndarray:
        """Begin an episode in every environment."""
        state: np.ndarray = self.env.begin()[STATE].numpy().copy()
        return state

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = torch.from_numpy(actions)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step all environments; for an episode that ends, infos have its last observation and if it was truncated."""
        observation, reward, terminated, truncated, infos = self.env.step(self.actions)
        told: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in (terminated | truncated).nonzero().flatten().tolist():
            cut = bool(truncated[i] and not terminated[i])
            told[i] = {"terminal_observation": infos["final_obs"][STATE][i].numpy(), "TimeLimit.truncated": cut}
        return observation[STATE].numpy().copy(), reward.numpy().copy(), (terminated | truncated).numpy(), told

    def close(self) -> None:
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs  # only the render mode is asked for

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("a learner sets nothing in its environments")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("a learner calls nothing in its environments")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class SB3Policy(PeerPolicy):
    """Policy of stable-baselines3."""

    class_name = "robot_rl.bench.peers.sb3:SB3Policy"
    center: Tensor
    """Mean (D,) and standard deviation `scale` (D,) of the observations, of PPO."""
    scale: Tensor

    def __init__(self, size: Size, config: PeerConfig):
        super().__init__()
        self.size, self.config = size, config
        kind = KINDS[config.algorithm].policy_aliases["MlpPolicy"]
        with torch.device("cpu"):  # its networks cannot be built on the meta device
            self.net = kind(*spaces(size), lambda _: 0.0, net_arch=list(config.hidden))
        self.register_buffer("center", torch.zeros(size.observation))
        self.register_buffer("scale", torch.ones(size.observation))

    def mean(self, state: Tensor) -> Tensor:
        if self.config.algorithm == "ppo":
            state = ((state - self.center) / self.scale).clamp(-CLIP, CLIP)
        actions: Tensor = self.net._predict(state, deterministic=True)
        return actions


@dataclass(frozen=True)
class SB3Recipe(PeerRecipe):
    """Learner of stable-baselines3."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    algorithm: ClassVar[str]

    def options(self, job: Job) -> dict[str, Any]:
        """Return arguments of the learner besides its networks, its seed and its environment."""
        return {}

    def build(self, job: Job, env: Any = None) -> Any:
        keywords = {"policy_kwargs": {"net_arch": list(self.hidden)}, "seed": job.seed, "device": job.device}
        return KINDS[self.algorithm]("MlpPolicy", env, **keywords, **self.options(job))

    def learn(self, job: Job) -> PeerPolicy:
        batched = Batched(PeerEnv(job, self.training))
        env = VecNormalize(batched, clip_obs=CLIP) if self.algorithm == "ppo" else batched
        model = self.build(job, env)
        model.learn(self.training.steps)
        batched.close()
        return self.policy_of(job.size, model)

    def policy_of(self, size: Size, model: Any) -> SB3Policy:
        """Return the learner's policy, with the statistics of its observations."""
        policy = SB3Policy(size, PeerConfig(self.algorithm, self.hidden))
        policy.net.load_state_dict(model.policy.state_dict())
        if env := model.get_vec_normalize_env():
            policy.center.copy_(torch.from_numpy(env.obs_rms.mean))
            policy.scale.copy_(torch.from_numpy(np.sqrt(env.obs_rms.var + env.epsilon)))
        return policy.eval()


@dataclass(frozen=True)
class SB3SAC(SB3Recipe):
    """Soft actor-critic of stable-baselines3."""

    learning_starts: PositiveInt = 100
    """Environment steps with random actions before the first update."""
    algorithm = "sac"

    def options(self, job: Job) -> dict[str, Any]:
        return {"learning_starts": self.learning_starts}


@dataclass(frozen=True)
class SB3TD3(SB3SAC):
    """TD3 of stable-baselines3, which explores by independent normal noise."""

    noise: PositiveFloat = 0.1
    """Standard deviation of the exploration noise."""
    learning_rate: PositiveFloat = 1e-3
    algorithm = "td3"

    def options(self, job: Job) -> dict[str, Any]:
        center = np.zeros(job.size.action)
        noise = NormalActionNoise(center, np.full_like(center, self.noise))
        return super().options(job) | {"action_noise": noise, "learning_rate": self.learning_rate}


@dataclass(frozen=True)
class SB3PPO(SB3Recipe):
    """PPO of stable-baselines3, with standardized observations and rewards."""

    hidden: tuple[int, ...] = (64, 64)
    training: PeerTraining = replace(PeerTraining(), steps=500_000, num_envs=16, log_every=10_000)
    rollout: PositiveInt = 128
    """Steps per environment between two updates."""
    batch: PositiveInt = 64
    epochs: PositiveInt = 10
    algorithm = "ppo"

    def options(self, job: Job) -> dict[str, Any]:
        return {"n_steps": self.rollout, "batch_size": self.batch, "n_epochs": self.epochs}
