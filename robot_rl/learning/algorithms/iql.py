"""Implicit Q-learning: Kostrikov et al. 2022, "Offline Reinforcement Learning with Implicit Q-Learning" (2110.06169).

    V: mean |tau - [Q - V < 0]| (Q - V)^2,   Q = min_i Qbar_i(s, a)      (equation 5)
    Q: (Q_i(s, a) - (r + discount * V(s')))^2                            (equation 6)
    actor: -exp(beta (Q - V)) log pi(a | s), the weight at most 100      (equation 7)

No action outside the data is evaluated.

CFGRL, classifier-free guidance as policy improvement (Frans et al. 2025, 2505.23458), with IQL's values:

    velocity = v(a; s) + w (v(a; s, better) - v(a; s)),   better = [Q(s, a) > V(s)]

The guided policy is proportional to pi(a | s) p(better | s, a)^w. The weight w is chosen after training.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import Observation, mlp
from policies.generative import FlowActor
from policies.networks.gaussian import GaussianActor
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.objectives import expectile_error, gradient_step, masked_mean
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class IQLConfig(ActorCriticConfig):
    expectile: Fraction = 0.7
    """Expectile tau of Q over the data's actions, which V estimates; 0.5 is the mean."""
    temperature: NonNegativeFloat = 3.0
    """Factor beta of the advantage in the exponent of a row's weight; 0: behaviour cloning."""
    heaviest: PositiveFloat = 100.0
    """Largest weight of a row in the actor's loss."""


class IQL(ActorCritic):
    """Actor-critic that evaluates the data's actions only."""

    config: IQLConfig

    def _extend(self, value_limits: Limits) -> None:
        c = self.config
        if c.head != "scalar":
            raise ConfigError(f"iql regresses values: use --agent.head scalar instead of {c.head}")
        value = mlp([self.policy.encoder.size, *c.hidden, 1], torch.nn.ReLU, norm=c.layer_norm)
        self.value = value.to(self.device)
        self.value_optimizer = torch.optim.Adam(self.value.parameters(), c.critic_lr, fused=True)
        self.extra |= {"value": self.value, "value_optimizer": self.value_optimizer}

    def state_value(self, features: Tensor) -> Tensor:
        """Return V (B,) of encoded observations."""
        return self.value(features).squeeze(-1)

    def _advantage(self, batch: Batch) -> Tensor:
        """Return the advantage Q - V (B,) of the data's actions; gradients flow into V only."""
        with torch.no_grad():
            features = self.policy.features(batch)
            q = self.target.value(features, batch[self.critic_on]).amin(0)
        return q - self.state_value(features)

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        advantage = self._advantage(batch)
        loss = expectile_error(advantage, self.config.expectile).mean()
        gradient_step(loss, self.value_optimizer)
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
            raise ConfigError("iql clones actions, which this policy's transform cannot represent")
        actor = self.policy.actor
        assert isinstance(actor, GaussianActor)
        log_prob = actor.log_prob(features, target)
        metrics = {"actor/advantage": advantage.mean(), "actor/weight": weight.mean()}
        return -(weight * log_prob).mean(), log_prob, metrics


@dataclass(frozen=True)
class CFGRLConfig(IQLConfig):
    """Hyperparameters of the update. `temperature` and `heaviest` have no effect."""

    unconditional: NonNegativeFloat = 0.1
    """Weight of the loss that trains the unconditional velocity v(a; s) on all actions."""


class CFGRL(IQL):
    """IQL whose actor is a flow with classifier-free guidance."""

    config: CFGRLConfig

    def _extend(self, value_limits: Limits) -> None:
        super()._extend(value_limits)
        actor = self.policy.actor
        if not isinstance(actor, FlowActor) or not actor.config.guided:
            raise ConfigError("cfgrl guides a flow: use --policy.kind flow --policy.guided")

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        actor = self.policy.actor
        assert isinstance(actor, FlowActor)
        with torch.no_grad():
            better = (self._advantage(batch) > 0).float()
        action, label = batch["action"].repeat(2, 1), torch.cat([better.new_ones(len(better)), 0 * better])
        errors = actor.loss(features.repeat(2, 1), action, self.rng, label)
        conditional, every = errors.chunk(2)
        share = better.mean().clamp_min(1e-3)
        loss = masked_mean(better[:, None] * conditional, batch) / share
        loss = loss + self.config.unconditional * masked_mean(every, batch)
        return loss, better.new_zeros(len(better)), {"actor/better": better.mean()}
