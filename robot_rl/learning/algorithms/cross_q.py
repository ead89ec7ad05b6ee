"""Critics without target networks: Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for
Greater Sample Efficiency and Simplicity" (1902.05605).

    [Q(s, a), Q(s', a')] = critic([s, s'], [a, a']) in one batch, normalized by the statistics of both halves
    y = r + discount * min_i Q_i(s', a') without gradient

There is no target network. The actor's update and value estimates use running statistics of the batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.critics import BatchNormCritic, Critic
from robot_rl.learning.parts.heads import Head


@dataclass(frozen=True)
class CrossQConfig(ActorCriticConfig):
    """Hyperparameters of the update. If `batch_norm` is true, `tau` and `layer_norm` have no effect."""

    batch_norm: bool = True
    """Use batch normalization in the critics; False: a plain actor-critic with `tau` 1."""


class CrossQ(ActorCritic):
    """Actor-critic without target networks."""

    config: CrossQConfig

    def _extend(self, value_limits: Limits) -> None:
        self.target = self.critic

    def _build_critic(self, width: int, head: Head) -> Critic:
        c = self.config
        if not c.batch_norm:
            return super()._build_critic(width, head)
        return BatchNormCritic(self.policy.encoder.size, width, c.critics, c.hidden, head)

    def _outputs(self, batch: Batch, following: Observation) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            u, log_prob = self._next_action(following)
            after = self.policy.features(following), self._critic_input(u, following)
        features = torch.cat([self.policy.features(batch), after[0]])
        self.critic.train()
        out, ahead = self.critic(features, torch.cat([batch[self.critic_on], after[1]])).chunk(2, 1)
        self.critic.eval()
        with torch.no_grad():
            return out, self._bootstrap(batch, ahead, log_prob)
