"""Classifier-free guidance as policy improvement: Frans et al. 2025 (CFGRL, 2505.23458).

    velocity = v(a; s) + w (v(a; s, better) - v(a; s)),   better = [Q(s, a) > V(s)], with the values of IQL

The policy is proportional to pi(a | s) p(better | s, a)^w. The weight w is chosen after training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.generative import FlowActor
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import Limits
from robot_rl.learning.algorithms.iql import IQL, IQLConfig
from robot_rl.learning.parts.objectives import masked_mean
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat


@dataclass(frozen=True)
class CFGRLConfig(IQLConfig):
    """Hyperparameters of the update. `temperature` and `heaviest` have no effect."""

    unconditional: NonNegativeFloat = 0.1
    """Weight of the unconditional loss, which clones all actions."""


class CFGRL(IQL):
    """IQL whose actor is a guided flow."""

    config: CFGRLConfig

    def _extend(self, value_limits: Limits) -> None:
        super()._extend(value_limits)
        actor = self.policy.actor
        if not isinstance(actor, FlowActor) or not actor.config.guided:
            raise ConfigError("cfgrl guides a flow: use --policy.kind flow --policy.guided")

    def _actor_loss(self, batch: Batch, features: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        actor = self.policy.actor
        assert isinstance(actor, FlowActor)
        with torch.no_grad():
            better = (self._advantage(batch) > 0).float()
        action, label = batch["action"].repeat(2, 1), torch.cat([better.new_ones(len(better)), 0 * better])
        errors = actor.loss(features.repeat(2, 1), action, self.rng, label)
        conditional, every = errors.chunk(2)
        share = better.mean().clamp_min(1e-3)
        loss = masked_mean(better[:, None] * conditional, batch) / share
        loss = loss + self.config.unconditional * masked_mean(every, batch)
        return loss, better.new_zeros(len(better)), {"actor/better": better.mean()}
