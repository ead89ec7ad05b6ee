"""PPO of rsl-rl-lib (Schwarke et al. 2025, arXiv 2509.10771) as a recipe, with its published settings for legged robots
(Rudin et al. 2022, arXiv 2109.11978)."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.models import MLPModel
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import Tensor

from policies.base import Size
from robot_rl.bench.peers.recipe import PeerConfig, PeerEnv, PeerPolicy, PeerRecipe, PeerTraining, privileged
from robot_rl.interface.observation_spec import STATE
from robot_rl.recipes.job import Job
from robot_rl.util.limits import NonNegativeFloat, PositiveFloat, PositiveInt

GROUPS = {"actor": ["policy"], "critic": ["critic"]}


class Parallel(VecEnv):
    """Adapter of our vector environment to rsl-rl-lib."""

    def __init__(self, env: PeerEnv, device: str):
        self.env, self.device = env, device
        self.cfg: dict[str, Any] = {}
        self.num_envs, self.num_actions = env.num_envs, env.info.action
        self.max_episode_length = env.info.horizon or 0
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)  # staggered by our environment instead
        self.seen = self._groups(env.begin())

    def _groups(self, observation: dict[str, Tensor]) -> TensorDict:
        groups = {"policy": observation[STATE], "critic": privileged(observation)}
        return TensorDict(groups, batch_size=[self.num_envs])

    def get_observations(self) -> TensorDict:
        return self.seen

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Step all environments; actions beyond [-1, 1] are limited by the task, as in our training."""
        observation, reward, terminated, truncated, _ = self.env.step(actions)
        self.seen = self._groups(observation)
        return self.seen, reward, (terminated | truncated).long(), {"time_outs": truncated & ~terminated}


class RslRlPolicy(PeerPolicy):
    """Policy of rsl-rl-lib with its own normalizer."""

    class_name = "robot_rl.bench.peers.rsl_rl:RslRlPolicy"

    def __init__(self, size: Size, config: PeerConfig):
        super().__init__()
        self.size, self.config = size, config
        with torch.device("cpu"):
            example = TensorDict({"policy": torch.zeros(1, size.observation)}, batch_size=[1])
            self.net = MLPModel(example, GROUPS, "actor", size.action, **actor(config.hidden, 1.0))

    def mean(self, state: Tensor) -> Tensor:
        actions: Tensor = self.net(TensorDict({"policy": state}, batch_size=[len(state)]))
        return actions


def actor(hidden: tuple[int, ...], std: float) -> dict[str, Any]:
    """Return the settings of the actor's network."""
    noise = {"class_name": "GaussianDistribution", "init_std": std, "std_type": "scalar"}
    return {"hidden_dims": list(hidden), "activation": "elu", "obs_normalization": True, "distribution_cfg": noise}


@dataclass(frozen=True)
class RslRlPPO(PeerRecipe):
    """PPO of rsl-rl-lib with an adaptive learning rate."""

    hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the hidden layers of actor and critic."""
    training: PeerTraining = replace(PeerTraining(), steps=3_800_000, num_envs=512, log_every=50_000)
    rollout: PositiveInt = 24
    """Steps per environment between two updates."""
    epochs: PositiveInt = 5
    minibatches: PositiveInt = 4
    initial_std: PositiveFloat = 1.0
    entropy_coef: NonNegativeFloat = 0.01

    def settings(self) -> dict[str, Any]:
        """Return the runner's configuration."""
        algorithm = {
            "class_name": "PPO", "num_learning_epochs": self.epochs, "num_mini_batches": self.minibatches,
            "entropy_coef": self.entropy_coef,
        }  # fmt: skip
        critic = {k: v for k, v in actor(self.hidden, 1.0).items() if k != "distribution_cfg"}
        networks = {"actor": {"class_name": "MLPModel"} | actor(self.hidden, self.initial_std)}
        networks |= {"critic": {"class_name": "MLPModel"} | critic}
        return {"num_steps_per_env": self.rollout, "save_interval": 10**9, "obs_groups": dict(GROUPS),
                "algorithm": algorithm} | networks  # fmt: skip

    def build(self, job: Job, env: Any = None) -> OnPolicyRunner:
        torch.manual_seed(job.seed)
        return OnPolicyRunner(env, self.settings(), None, job.device)

    def learn(self, job: Job) -> PeerPolicy:
        env = PeerEnv(job, self.training, stagger=True)
        runner = self.build(job, Parallel(env, job.device))
        runner.learn(-(-self.training.steps // (self.rollout * env.num_envs)))
        env.close()
        return self.policy_of(job.size, runner)

    def policy_of(self, size: Size, runner: OnPolicyRunner) -> RslRlPolicy:
        """Return the runner's policy with its normalizer."""
        policy = RslRlPolicy(size, PeerConfig("ppo", self.hidden))
        policy.net.load_state_dict(runner.alg.get_policy().state_dict())
        return policy.eval()
