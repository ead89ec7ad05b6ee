"""Values of an open and of a shut gripper: the discrete critic of HIL-SERL (Luo et al. 2024, arXiv 2410.21845), by
double Q-learning (van Hasselt et al. 2016, arXiv 1509.06461).

    y    = r + discount * Qbar(s', the policy's own choice at s')
    loss = mean (Q(s, what the gripper did) - y)^2

Qbar are the values of the averaged actor. The price of moving the gripper is `grasp_margin`, which a choice must gain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from policies.networks.gaussian import GaussianActor
from robot_rl.data.replay import NEXT, Batch
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits, limits_of
from robot_rl.util.errors import ConfigError

GRIPPER = "gripper."
"""What the name of an action that moves a gripper begins with."""


def check_gripper(policy: ActorPolicy, actions: list[str]) -> None:
    """Raise ConfigError where a policy decides on a gripper, and the last of the named actions is none."""
    if policy.grasps and not actions[-1].startswith(GRIPPER):
        raise ConfigError(f"grasp needs a gripper as the last action, and this task's is {actions[-1]!r}; leave it out")


class GraspingActorCritic(ActorCritic):
    """An actor-critic that also learns the values of a gripper, where its policy decides by them."""

    learns_gripper: ClassVar[bool] = True

    def __init__(self, policy: ActorPolicy, config: ActorCriticConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, config, seed, value_limits)
        self.returns = limits_of(replace(config, entropy_backup=False), value_limits)
        """The range of the gripper's values, which hold no entropy."""
        if policy.grasps:
            values = self._values(policy.actor).parameters()
            self.grasp_optimizer = torch.optim.Adam(values, config.critic_lr)
            self.extra["grasp_optimizer"] = self.grasp_optimizer

    @staticmethod
    def _values(actor: object) -> torch.nn.Sequential:
        assert isinstance(actor, GaussianActor) and actor.values is not None
        return actor.values

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        policy, rows = self.policy, torch.arange(len(batch["action"]), device=self.device)
        if not policy.grasps:
            return {}
        following: Observation = {k.removeprefix(NEXT): v for k, v in batch.items() if k.startswith(NEXT)}
        with torch.no_grad():
            seen, features = policy.actor_features(batch), policy.actor_features(following)
            chosen = policy.transform(policy.actor.mean(features), following)[:, -1] > 0
            after = self._values(self.average)(features)[rows, chosen.long()]
            target = (batch["reward"] + batch["discount"] * after).clamp(*self.returns)
        values = self._values(policy.actor)(seen)
        did = (batch["action"][:, -1] > 0).long()
        loss = (values[rows, did] - target).square().mean()
        self.grasp_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.grasp_optimizer.step()
        gap = (values[:, 1] - values[:, 0]).detach().abs().mean()
        return {"grasp/loss": loss.detach(), "grasp/gap": gap}
