"""TD3+BC: Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning" (2106.06860).

actor: |u - u_data|^2 - alpha Q(s, T(u)) / mean |Q|      (equations 4 and 5)
"""

from dataclasses import dataclass

from torch import Tensor

from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.parts.objectives import masked_mean, scaled
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat


@dataclass(frozen=True)
class TD3BCConfig(ActorCriticConfig):
    alpha: NonNegativeFloat = 2.5
    """Weight of the values, normalized to a mean magnitude of 1, in the actor's loss; 0: behaviour cloning."""


class TD3BC(ActorCritic):
    """Actor-critic with a cloning loss that keeps the actor near the data."""

    config: TD3BCConfig

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        c, policy = self.config, self.policy
        target = policy.invert(batch["action"], batch)
        if target is None:
            raise ConfigError("td3-bc clones actions, which this policy's transform cannot represent")
        u = policy.actor.mean(features)
        cloning = masked_mean((u - target).square(), batch)
        q = self._actor_value(batch, seen, u)
        loss = cloning - c.alpha * scaled(q) if c.alpha else cloning
        metrics = {"actor/q": q.detach().mean(), "actor/cloning": cloning.detach()}
        return loss, u.new_zeros(len(u)), metrics
