"""Best of N candidate actions: EXPO (Dong et al. 2025, 2507.07986), and Q-chunking's best-of-N form (Li et al. 2025,
2507.07969).

    flow:   flow-matching loss (velocity error) on the data's actions
    critic: y = r + discount * min Qbar(s', a'),  a' the candidate at s' with the largest mean of Qbar
    actor:  alpha log pi(e) - Q(s, a + scale e),  e ~ pi(s, a), a from the data
"""

import torch
from torch import Tensor

from policies.base import Observation
from policies.best_of import BestOfPolicy
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import Limits
from robot_rl.learning.algorithms.fql import BehaviorFlow
from robot_rl.util.errors import ConfigError


class BestOf(BehaviorFlow):
    """Actor-critic that executes the candidate action with the largest value."""

    policy: BestOfPolicy

    def _extend(self, value_limits: Limits) -> None:
        head = self.config.head
        if head != "scalar":
            raise ConfigError(f"candidates are chosen by scalar values: --agent.head scalar instead of {head}")
        self.clone_with(self.policy.flow)

    def _explore(self, seen: Observation, noise: Tensor, rng: torch.Generator) -> Tensor:
        return self.policy.best(self.policy.features(seen), rng, self.target.value)

    def _next_action(self, following: Observation) -> tuple[Tensor, Tensor]:
        u = self.policy.best(self.policy.features(following), self.rng, self.target.value)
        return u, u.new_zeros(len(u))

    def _update_actor(self, batch: Batch) -> dict[str, Tensor]:
        return super()._update_actor(batch) if self.policy.config.scale else {}

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        edited, log_prob = self.policy.edit(features, batch["action"], self.rng)
        q = self._actor_value(batch, seen, edited)
        loss = -q.mean()
        if self.config.entropy:
            loss = loss + self._entropy_cost(log_prob).mean()
        return loss, log_prob, {"actor/q": q.detach().mean()}

    def finish(self) -> None:
        super().finish()
        self.policy.critic.load_state_dict(self.target.state_dict())
