"""Advantage-weighted actor-critic: Nair et al. 2020, "Accelerating Online Reinforcement Learning with Offline Datasets"
(AWAC, arXiv 2006.09359).

    actor:  -exp(A(s, a) / lambda) log pi(a | s) over the data's actions,   A = min_i Q_i(s, a) - E_pi min_i Q_i(s, .)

Policy: tanh-Gaussian; critics: 2, TD with the policy's actions; data: offline updates from all episodes, then half
demonstrations, half online; reward: success, or the task's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.networks.gaussian import GaussianActor, GaussianConfig
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.recipes.recipe import OffPolicyRecipe
from robot_rl.training.off_policy import OFFLINE, OffPolicyConfig
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True)
class AWACConfig(ActorCriticConfig):
    temperature: PositiveFloat = 1.0
    """Lambda, in units of the value: the advantage that multiplies a weight by e. The temperature of iql is 1 / it."""
    samples: PositiveInt = 1
    """Number of the policy's actions whose mean value is the state's value."""
    heaviest: PositiveFloat = 100.0
    """Largest weight of a row in the actor's loss."""


class AWACAgent(ActorCritic):
    """Actor-critic whose actor clones the batch's actions, weighted by their advantages."""

    config: AWACConfig

    def _extend(self, value_limits: Limits) -> None:
        if self.policy.actor.std is not None or self.policy.horizon > 1 or self.critic_on != "action":
            raise ConfigError("awac weighs single actions by their density: leave out --policy.std, --policy.horizon "
                              "and --agent.critic-on")  # fmt: skip
        if self.config.entropy or self.config.l2 or self.config.imitation:
            raise ConfigError("awac's actor only clones: --agent.no-entropy --agent.l2 0 --agent.imitation 0")

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        c, actor = self.config, self.policy.actor
        assert isinstance(actor, GaussianActor)
        with torch.no_grad():
            own = [self._actor_value(batch, seen, actor.sample(features, self.rng)[0]) for _ in range(c.samples)]
            advantage = self._actor_value(batch, seen, batch["action"]) - torch.stack(own).mean(0)
            weight = (advantage / c.temperature).exp().clamp_max(c.heaviest)
        log_prob = actor.log_prob(features, batch["action"])
        metrics = {"actor/advantage": advantage.mean(), "actor/weight": weight.mean()}
        return -(weight * log_prob).mean(), log_prob, metrics


@dataclass(frozen=True)
class AWAC(OffPolicyRecipe):
    """Learn offline from any data by cloning its better actions, then continue online."""

    policy: GaussianConfig = GaussianConfig(initial_std=0.3)
    agent: AWACConfig = AWACConfig(
        tau=0.005, discount=0.99, n_step=1, pooling="min", l2=0.0, actor_delay=1, ema_decay=0.99,
        exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
    )  # fmt: skip
    training: OffPolicyConfig = OFFLINE
    agent_class = AWACAgent
