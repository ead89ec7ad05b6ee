"""Flow Q-learning: Park et al. 2025 (2502.02538), on chunks as in Li et al. 2025, "Reinforcement Learning with Action
Chunking" (QC-FQL, 2507.07969).

    flow:  velocity error of the data's actions
    actor: alpha |pi(s, z) - flow(s, z)|^2 - Q(s, pi(s, z)) / mean |Q|,   z ~ N(0, I)      (equation 8)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import normal
from policies.generative import FlowActor, GenerativeConfig, GenerativePolicy
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCriticConfig, Limits
from robot_rl.learning.algorithms.behavior_flow import BehaviorFlow
from robot_rl.learning.parts.objectives import scaled
from robot_rl.util.limits import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class FQLConfig(ActorCriticConfig):
    """Hyperparameters of the update."""

    alpha: NonNegativeFloat = 3.0
    """Weight of staying with the cloned flow; the value's mean size counts as 1."""
    flow_steps: PositiveInt = 10
    """Euler steps of the cloned flow."""


class FQL(BehaviorFlow):
    """An actor-critic with a one-step actor that stays near a cloned flow."""

    config: FQLConfig

    def __init__(self, policy: ActorPolicy, config: FQLConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, config, seed, value_limits)
        assert isinstance(policy, GenerativePolicy)
        shape = GenerativeConfig("flow", policy.config.hidden, policy.horizon, sample_steps=config.flow_steps)
        self.clone_with(FlowActor(policy.encoder.size, policy.latent, shape).to(self.device))

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
