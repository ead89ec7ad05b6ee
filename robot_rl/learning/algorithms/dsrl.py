"""Diffusion steering: Wagenmaker et al. 2025 (DSRL, 2506.15799), in its two forms.

critic_on = latent   SAC with the noise as its action                                       (DSRL-SAC)
critic_on = action   Q(s, a) by TD on executed actions, distilled into values of noise      (DSRL-NA, algorithm 1)
                     (Q_noise(s, w) - Q(s, base(s, w)))^2,  w ~ N(0, I);  the actor maximizes Q_noise
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import normal
from policies.steered import SteeredPolicy
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import Scalar
from robot_rl.learning.parts.objectives import gradient_step, pooled
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class DSRLConfig(ActorCriticConfig):
    distillations: PositiveInt = 2
    """Number of updates of the noise's values per critic update; used only if `critic_on` is action."""


class DSRL(ActorCritic):
    """Actor-critic whose actor chooses the noise of a frozen policy."""

    config: DSRLConfig
    policy: SteeredPolicy

    def _extend(self, value_limits: Limits) -> None:
        self.noise_critic: Critic | None = None
        if self.critic_on == "action":
            c = self.config
            shape = (self.policy.encoder.size, self.policy.latent, c.critics, c.hidden)
            self.noise_critic = Critic(*shape, Scalar(*UNLIMITED), c.layer_norm).to(self.device)
            self.noise_optimizer = torch.optim.Adam(self.noise_critic.parameters(), c.critic_lr, fused=True)
            self.extra |= {"noise_critic": self.noise_critic, "noise_optimizer": self.noise_optimizer}

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        if self.noise_critic is None or not self.policy.config.scale:
            return {}
        with torch.no_grad():
            features = self.policy.features(batch)
        for _ in range(self.config.distillations):
            w = normal((len(features), self.policy.latent), self.rng, self.device) / self.policy.config.scale
            with torch.no_grad():
                target = self.critic.value(features, self.policy.transform(w, batch))
            loss = (self.noise_critic.value(features, w) - target).square().mean(1).sum()
            gradient_step(loss, self.noise_optimizer)
        return {"critic/distillation": loss.detach()}

    def _actor_value(self, batch: Batch, seen: Tensor, u: Tensor) -> Tensor:
        if self.noise_critic is None:
            return super()._actor_value(batch, seen, u)
        return pooled(self.noise_critic.value(seen, u), self.config.pooling)
