"""Q-learning with actors that take one step from noise to action, and a base class of agents that clone a flow.

FQL (Park et al. 2025, 2502.02538), on chunks as in "Reinforcement Learning with Action Chunking" (Li et al. 2025,
QC-FQL, 2507.07969):

    flow:  flow-matching loss (velocity error) on the data's actions
    actor: alpha |pi(s, z) - flow(s, z)|^2 - Q(s, pi(s, z)) / mean |Q|,   z ~ N(0, I)      (equation 8)

OFQL (Nguyen et al. 2025, 2508.13904), on averaged velocities (Geng et al. 2025, MeanFlow):

    actor: MeanFlow loss on the data's actions - eta Q(s, pi(s, z)) / mean |Q|,   pi(s, z) = z - velocity(z, 0, 1; s)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import normal
from policies.generative import FlowActor, GenerativeConfig, GenerativePolicy, MeanFlowActor
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.objectives import gradient_step, masked_mean, scaled
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveInt


class BehaviorFlow(ActorCritic):
    """Actor-critic that also fits a flow to the data's actions, by the velocity error."""

    def clone_with(self, flow: FlowActor) -> None:
        """Set the flow that clones the data's actions, and create its optimizer."""
        self.flow = flow
        self.flow_optimizer = torch.optim.Adam(flow.parameters(), self.config.actor_lr, fused=True)
        self.extra |= {"flow": flow, "flow_optimizer": self.flow_optimizer}

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            features = self.policy.features(batch)
        loss = masked_mean(self.flow.loss(features, batch["action"], self.rng), batch)
        gradient_step(loss, self.flow_optimizer)
        return {"flow/loss": loss.detach()}


@dataclass(frozen=True)
class FQLConfig(ActorCriticConfig):
    alpha: NonNegativeFloat = 3.0
    """Weight of the actor's squared distance from the cloned flow; values are normalized to a mean magnitude of 1."""
    flow_steps: PositiveInt = 10
    """Number of Euler steps of the cloned flow."""


class FQL(BehaviorFlow):
    """Actor-critic with a one-step actor that stays near a cloned flow."""

    config: FQLConfig
    policy: GenerativePolicy

    def _extend(self, value_limits: Limits) -> None:
        policy = self.policy
        shape = GenerativeConfig("flow", policy.config.hidden, policy.horizon, sample_steps=self.config.flow_steps)
        self.clone_with(FlowActor(policy.encoder.size, policy.latent, shape).to(self.device))

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        z = normal((len(features), self.policy.latent), self.rng, self.device)
        with torch.no_grad():
            target = self.flow.decode(features, z).clamp(-1, 1)
        u = self.policy.actor.decode(features, z)
        distance = (u - target).square().mean()
        q = self._actor_value(batch, seen, u)
        metrics = {"actor/q": q.detach().mean(), "actor/distance": distance.detach()}
        return self.config.alpha * distance - scaled(q), u.new_zeros(len(u)), metrics


@dataclass(frozen=True)
class OFQLConfig(ActorCriticConfig):
    eta: NonNegativeFloat = 0.5
    """Weight of the values, normalized to a mean magnitude of 1, in the actor's loss; 0: behaviour cloning."""


class OFQL(ActorCritic):
    """Actor-critic whose actor is a one-step flow."""

    config: OFQLConfig

    def _extend(self, value_limits: Limits) -> None:
        if not isinstance(self.policy.actor, MeanFlowActor):
            raise ConfigError("ofql learns averaged velocities: use --policy.kind mean-flow")

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        actor = self.policy.actor
        assert isinstance(actor, MeanFlowActor)
        cloning = masked_mean(actor.loss(features, batch["action"], self.rng), batch)
        metrics = {"actor/cloning": cloning.detach()}
        if not self.config.eta:
            return cloning, cloning.new_zeros(len(features)), metrics
        u, log_prob = actor.sample(features, self.rng)
        q = self._actor_value(batch, seen, u)
        return cloning - self.config.eta * scaled(q), log_prob, metrics | {"actor/q": q.detach().mean()}
