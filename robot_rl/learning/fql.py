"""Flow Q-learning: Park et al. 2025 (2502.02538), on chunks as in Li et al. 2025, "Reinforcement Learning with Action
Chunking" (QC-FQL, 2507.07969).

    flow:  velocity error of the data's actions
    actor: alpha |pi(s, z) - flow(s, z)|^2 - Q(s, pi(s, z)) / mean |Q|,   z ~ N(0, I)      (equation 8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import normal
from policies.generative import FlowActor, GenerativeConfig, GenerativePolicy
from robot_rl.data.replay import Batch
from robot_rl.learning.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.objectives import masked_mean, scaled
from robot_rl.util.limits import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class FQLConfig(ActorCriticConfig):
    """Hyperparameters of the update."""

    alpha: NonNegativeFloat = 3.0
    """Weight of staying with the cloned flow; the value's mean size counts as 1."""
    flow_steps: PositiveInt = 10
    """Euler steps of the cloned flow."""


class FQL(ActorCritic):
    """An actor-critic with a one-step actor that stays near a cloned flow."""

    config: FQLConfig

    def __init__(self, policy: ActorPolicy, config: FQLConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, config, seed, value_limits)
        assert isinstance(policy, GenerativePolicy)
        shape = GenerativeConfig("flow", policy.config.hidden, policy.horizon, sample_steps=config.flow_steps)
        self.flow = FlowActor(policy.encoder.size, policy.latent, shape).to(self.device)
        self.flow_optimizer = torch.optim.Adam(self.flow.parameters(), config.actor_lr, fused=True)

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            features = self.policy.features(batch)
        loss = masked_mean(self.flow.loss(features, batch["action"], self.rng), batch)
        self.flow_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.flow_optimizer.step()
        return {"flow/loss": loss.detach()}

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        c, policy = self.config, self.policy
        assert isinstance(policy, GenerativePolicy)
        z = normal((len(features), policy.latent), self.rng, self.device)
        with torch.no_grad():
            aim = self.flow.decode(features, z).clamp(-1, 1)
        u = policy.actor.decode(features, z)
        distance = (u - aim).square().mean()
        q = self._actor_value(batch, seen, u)
        metrics = {"actor/q": q.detach().mean(), "actor/distance": distance.detach()}
        return c.alpha * distance - scaled(q), u.new_zeros(len(u)), metrics

    def state_dict(self) -> dict[str, Any]:
        flow = {"flow": self.flow.state_dict(), "flow_optimizer": self.flow_optimizer.state_dict()}
        return super().state_dict() | flow

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.flow.load_state_dict(state["flow"])
        self.flow_optimizer.load_state_dict(state["flow_optimizer"])
