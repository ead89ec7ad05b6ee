"""Values of an open and of a shut gripper: the discrete critic of HIL-SERL (Luo et al. 2024, arXiv 2410.21845), by
double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461).

    y    = r + discount * Qbar(s', the policy's own choice at s')
    loss = mean (Q(s, what the gripper did) - y)^2

Qbar are the values of the averaged actor. The price of moving the gripper is `grasp_margin`, which a choice must gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from policies.gaussian import GaussianActor
from robot_rl.data.replay import NEXT, Batch
from robot_rl.util.errors import ConfigError

if TYPE_CHECKING:
    from robot_rl.learning.actor_critic import ActorCritic

GRIPPER = "gripper."
"""What the name of an action that moves a gripper begins with."""


def grasps(policy: ActorPolicy) -> bool:
    """Return whether a policy decides on its gripper by values."""
    return isinstance(policy.actor, GaussianActor) and policy.actor.values is not None


def check_gripper(policy: ActorPolicy, actions: list[str]) -> None:
    """Raise ConfigError where a policy decides on a gripper, and the last of the named actions is none."""
    if grasps(policy) and not actions[-1].startswith(GRIPPER):
        raise ConfigError(f"grasp needs a gripper as the last action, and this task's is {actions[-1]!r}; leave it out")


class GraspValues:
    """Updates the values of an agent's policy."""

    def __init__(self, agent: ActorCritic, low: float, high: float):
        """Returns lie within [low, high]."""
        self.agent, self.low, self.high = agent, low, high
        self.optimizer = torch.optim.Adam(self._values(agent.policy.actor).parameters(), agent.config.critic_lr)

    @staticmethod
    def _values(actor: object) -> torch.nn.Sequential:
        assert isinstance(actor, GaussianActor) and actor.values is not None
        return actor.values

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from B rows as `ActorCritic.update` gets them; return metrics."""
        policy, rows = self.agent.policy, torch.arange(len(batch["action"]), device=self.agent.device)
        following: Observation = {k.removeprefix(NEXT): v for k, v in batch.items() if k.startswith(NEXT)}
        with torch.no_grad():
            seen, features = policy.actor_features(batch), policy.actor_features(following)
            chosen = policy.transform(policy.actor.mean(features), following)[:, -1] > 0
            after = self._values(self.agent.average)(features)[rows, chosen.long()]
            target = (batch["reward"] + batch["discount"] * after).clamp(self.low, self.high)
        values = self._values(policy.actor)(seen)
        did = (batch["action"][:, -1] > 0).long()
        loss = (values[rows, did] - target).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        gap = (values[:, 1] - values[:, 0]).detach().abs().mean()
        return {"grasp/loss": loss.detach(), "grasp/gap": gap}
