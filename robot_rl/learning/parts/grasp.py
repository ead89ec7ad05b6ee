"""Discrete critic of an open and a closed gripper (HIL-SERL, Luo et al. 2024, arXiv 2410.21845), learned by double
Q-learning (van Hasselt et al. 2016, arXiv 1509.06461).

    y    = r + discount * Qbar(s', the policy's choice at s')
    loss = mean (Q(s, executed gripper command) - y)^2

Qbar is the gripper critic of the averaged actor. The gripper critic overrides the gripper command of the mean action if
its values of open and closed differ by more than `grasp_margin`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.networks.gaussian import GaussianActor
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import ActorCritic, Limits, limits_of
from robot_rl.learning.parts.objectives import gradient_step, next_observation
from robot_rl.util.errors import ConfigError

GRIPPER = "gripper."
"""Prefix of the names of actions that move a gripper."""


def check_gripper(policy: ActorPolicy, actions: list[str]) -> None:
    """Raise ConfigError if a policy has a gripper critic, but the last of its `actions`, by name, moves no gripper."""
    if policy.grasps and not actions[-1].startswith(GRIPPER):
        raise ConfigError(f"grasp needs a gripper as the last action, and this task's is {actions[-1]!r}; leave it out")


class GraspingActorCritic(ActorCritic):
    """Actor-critic that also learns the gripper critic of a policy with `grasp`."""

    learns_gripper = True

    def _extend(self, value_limits: Limits) -> None:
        self.returns = limits_of(replace(self.config, entropy_backup=False), value_limits)
        """Limits of the gripper critic's targets, which include no entropy."""
        if self.policy.grasps:
            values = self._values(self.policy.actor).parameters()
            self.grasp_optimizer = torch.optim.Adam(values, self.config.critic_lr)
            self.extra["grasp_optimizer"] = self.grasp_optimizer

    @staticmethod
    def _values(actor: object) -> torch.nn.Sequential:
        assert isinstance(actor, GaussianActor) and actor.values is not None
        return actor.values

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        policy, rows = self.policy, torch.arange(len(batch["action"]), device=self.device)
        if not policy.grasps:
            return {}
        following = next_observation(batch)
        with torch.no_grad():
            seen, features = policy.actor_features(batch), policy.actor_features(following)
            chosen = policy.transform(policy.actor.mean(features), following)[:, -1] > 0
            after = self._values(self.average)(features)[rows, chosen.long()]
            target = (batch["reward"] + batch["discount"] * after).clamp(*self.returns)
        values = self._values(policy.actor)(seen)
        executed = (batch["action"][:, -1] > 0).long()
        loss = (values[rows, executed] - target).square().mean()
        gradient_step(loss, self.grasp_optimizer)
        gap = (values[:, 1] - values[:, 0]).detach().abs().mean()
        return {"grasp/loss": loss.detach(), "grasp/gap": gap}
