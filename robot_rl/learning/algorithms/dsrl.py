"""Diffusion steering: Wagenmaker et al. 2025 (DSRL, 2506.15799), in both forms.

critic_on = latent   SAC with the noise as its action                                       (DSRL-SAC)
critic_on = action   Q(s, a) by TD on executed actions, distilled into values of noise      (DSRL-NA, algorithm 1)
                     (Q_noise(s, w) - Q(s, base(s, w)))^2,  w ~ N(0, I);  the actor maximizes Q_noise
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import normal
from policies.steered import SteeredPolicy
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import Scalar
from robot_rl.learning.parts.objectives import pooled
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class DSRLConfig(ActorCriticConfig):
    """Hyperparameters of the update."""

    distillations: PositiveInt = 2
    """Updates of the values of noise per critic update (critic_on action)."""


class DSRL(ActorCritic):
    """An actor-critic on the noise of a frozen policy."""

    config: DSRLConfig
    policy: SteeredPolicy

    def __init__(self, policy: ActorPolicy, config: DSRLConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, config, seed, value_limits)
        self.noise_critic: Critic | None = None
        if self.judged == "action":
            shape = (policy.encoder.size, policy.latent, config.critics, config.hidden)
            self.noise_critic = Critic(*shape, Scalar(*UNLIMITED), config.layer_norm).to(self.device)
            self.noise_optimizer = torch.optim.Adam(self.noise_critic.parameters(), config.critic_lr, fused=True)
            self.extra |= {"noise_critic": self.noise_critic, "noise_optimizer": self.noise_optimizer}

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        if self.noise_critic is None or not self.policy.config.scale:
            return {}
        with torch.no_grad():
            features = self.policy.features(batch)
        for _ in range(self.config.distillations):
            w = normal((len(features), self.policy.latent), self.rng, self.device) / self.policy.config.scale
            with torch.no_grad():
                aim = self.critic.value(features, self.policy.transform(w, batch))
            loss = (self.noise_critic.value(features, w) - aim).square().mean(1).sum()
            self.noise_optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.noise_optimizer.step()
        return {"critic/distillation": loss.detach()}

    def _actor_value(self, batch: Batch, seen: Tensor, u: Tensor) -> Tensor:
        if self.noise_critic is None:
            return super()._actor_value(batch, seen, u)
        return pooled(self.noise_critic.value(seen, u), self.config.pooling)
