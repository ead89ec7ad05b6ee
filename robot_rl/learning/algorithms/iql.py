"""Implicit Q-learning: Kostrikov et al. 2022, "Offline Reinforcement Learning with Implicit Q-Learning" (2110.06169).

    V: mean |tau - [Q - V < 0]| (Q - V)^2,   Q = min_i Qbar_i(s, a)      (equation 5)
    Q: (Q_i(s, a) - (r + discount * V(s')))^2                            (equation 6)
    actor: -exp(beta (Q - V)) log pi(a | s), the weight at most 100      (equation 7)

No value of an action outside the data is ever looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation, mlp
from policies.networks.gaussian import GaussianActor
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.objectives import expectile_error
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class IQLConfig(ActorCriticConfig):
    """Hyperparameters of the update."""

    expectile: Fraction = 0.7
    """Share tau of the expectile that V takes of Q over the data's actions; 0.5 is their mean."""
    temperature: NonNegativeFloat = 3.0
    """Weight beta of the advantage in the exponent; 0 clones the data."""
    heaviest: PositiveFloat = 100.0
    """Largest weight of a row."""


class IQL(ActorCritic):
    """An actor-critic that learns from the data's own actions alone."""

    config: IQLConfig

    def __init__(self, policy: ActorPolicy, config: IQLConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, config, seed, value_limits)
        if config.head != "scalar":
            raise ConfigError(f"iql regresses values: use --agent.head scalar instead of {config.head}")
        self.value = mlp([policy.encoder.size, *config.hidden, 1], torch.nn.ReLU, norm=config.layer_norm).to(
            self.device
        )
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), config.critic_lr, fused=True)
        self.extra |= {"value": self.value, "value_optimizer": self.value_optimizer}

    def state_value(self, features: Tensor) -> Tensor:
        """Return V (B,) of encoded observations."""
        return self.value(features).squeeze(-1)

    def _advantage(self, batch: Batch) -> Tensor:
        """Return Q - V (B,) of the data's actions, with gradients into V."""
        with torch.no_grad():
            features = self.policy.features(batch)
            q = self.target.value(features, batch[self.judged]).amin(0)
        return q - self.state_value(features)

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        advantage = self._advantage(batch)
        loss = expectile_error(advantage, self.config.expectile).mean()
        self.value_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.value_optimizer.step()
        return {"value/loss": loss.detach()}

    def _backup(self, batch: Batch, following: Observation) -> Tensor:
        value = self.state_value(self.policy.features(following))
        return self.critic.head.target(batch["reward"], batch["discount"], value[:, None])

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            advantage = self._advantage(batch)
            weight = (self.config.temperature * advantage).exp().clamp(max=self.config.heaviest)
        target = self.policy.invert(batch["action"], batch)
        if target is None:
            raise ConfigError("iql clones actions, which this policy's transform cannot express")
        actor = self.policy.actor
        assert isinstance(actor, GaussianActor)
        log_prob = actor.log_prob(features, target)
        return (
            -(weight * log_prob).mean(),
            log_prob,
            {"actor/advantage": advantage.mean(), "actor/weight": weight.mean()},
        )
