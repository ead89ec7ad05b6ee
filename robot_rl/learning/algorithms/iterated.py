"""Iterated Q-networks: Vincent et al. 2025, "Iterated Q-Network: Beyond One-Step Bellman Updates in Deep Reinforcement
Learning" (2403.02107).

    Q_1: (Q_1(s, a) - r - discount * Qbar(s', a'))^2        Qbar follows Q_1 slowly
    Q_k: (Q_k(s, a) - r - discount * Q_{k-1}(s', a'))^2     k = 2 .. K, Q_{k-1} without gradient

Q_K is K Bellman updates ahead of the target Qbar, and the actor maximizes Q_K. The paper shifts its networks by one
place every few thousand updates; here Qbar follows at every update, as in soft actor-critic.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.objectives import pooled
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class IteratedConfig(ActorCriticConfig):
    iterates: PositiveInt = 4
    """Number K of critic ensembles, each the target of the next; 1: the plain actor-critic."""


class IteratedQ(ActorCritic):
    """Actor-critic with a sequence of critic ensembles, each the target of the next."""

    config: IteratedConfig

    def __init__(self, policy: ActorPolicy, config: IteratedConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, replace(config, critics=config.critics * config.iterates), seed, value_limits)
        self.config = config

    def _backup(self, batch: Batch, following: Observation) -> Tensor:
        """Return the targets of all K ensembles, (K, B) or (K, B, ...) depending on the head."""
        u, log_prob = self._next_action(following)
        at = self.policy.features(following), self._critic_input(u, following)
        size = self.config.critics
        row = [self.target(*at)[:size], *self.critic(*at).split(size)[:-1]]
        return torch.stack([self._bootstrap(batch, out, log_prob) for out in row])

    def _critic_loss(self, batch: Batch, out: Tensor, target: Tensor) -> Tensor:
        parts = zip(out.split(self.config.critics), target, strict=True)
        losses = [super(IteratedQ, self)._critic_loss(batch, *part) for part in parts]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _actor_value(self, batch: Batch, seen: Tensor, u: Tensor) -> Tensor:
        values = self.critic.value(seen, self._critic_input(u, batch))
        return pooled(values[-self.config.critics :], self.config.pooling)
