"""One-step flow Q-learning: Nguyen et al. 2025 (2508.13904), on averaged velocities (Geng et al. 2025, MeanFlow).

actor: MeanFlow loss of the data's actions - eta Q(s, pi(s, z)) / mean |Q|,   pi(s, z) = z - velocity(z, 0, 1; s)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from policies.actor import ActorPolicy
from policies.generative import MeanFlowActor
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.objectives import masked_mean, scaled
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat


@dataclass(frozen=True)
class OFQLConfig(ActorCriticConfig):
    """Hyperparameters of the update."""

    eta: NonNegativeFloat = 0.5
    """Weight of the value, whose mean size counts as 1; 0 clones the data."""


class OFQL(ActorCritic):
    """An actor-critic with a one-step flow for an actor."""

    config: OFQLConfig

    def __init__(self, policy: ActorPolicy, config: OFQLConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, config, seed, value_limits)
        if not isinstance(policy.actor, MeanFlowActor):
            raise ConfigError("ofql learns averaged velocities: use --policy.kind mean-flow")

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        actor = self.policy.actor
        assert isinstance(actor, MeanFlowActor)
        cloning = masked_mean(actor.loss(features, batch["action"], self.rng), batch)
        metrics = {"actor/cloning": cloning.detach()}
        if not self.config.eta:
            return cloning, cloning.new_zeros(len(features)), metrics
        u, unknown = actor.sample(features, self.rng)
        q = self._actor_value(batch, seen, u)
        return cloning - self.config.eta * scaled(q), unknown, metrics | {"actor/q": q.detach().mean()}
