"""Calibrated Q-learning: Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online
Fine-Tuning" (2303.05479), on conservative Q-learning (Kumar et al. 2020).

    critic: TD error + weight (logsumexp_a max(Q(s, a), return of the data from s) - Q(s, a_data))

The maximum is over the policy's actions: no value is pushed below what the data's policy is known to reach. That is the
recorded return where the reward cannot fall below 0, as with success. Where it can, what would follow after a cut, or
after steps of the agent itself, counts as the least possible return; without such a limit there is no bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Observation
from robot_rl.data.replay import NEXT, Batch, Column
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import UNLIMITED, ActorCritic, ActorCriticConfig, Limits
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveInt

RETURN = "return_to_go"
"""Column of what the discounted return from each step on is at least."""
UNKNOWN = -1e30
"""No bound, but a number: the recipe is then conservative Q-learning."""


@dataclass(frozen=True)
class CalQLConfig(ActorCriticConfig):
    """Hyperparameters of the update."""

    conservative: NonNegativeFloat = 0.5
    """Weight of pushing down the values of actions outside the data; 0 is the actor-critic without it."""
    actions: PositiveInt = 4
    """Actions sampled at each of uniform, the policy here and the policy at the next state (the paper: 10)."""
    calibrated: bool = True
    """Bound the policy's values from below by the data's return; off is conservative Q-learning (CQL)."""


class CalQL(ActorCritic):
    """An actor-critic with conservative, calibrated values."""

    config: CalQLConfig

    def __init__(self, policy: ActorPolicy, config: CalQLConfig, seed: int = 0, value_limits: Limits = UNLIMITED):
        super().__init__(policy, config, seed, value_limits)
        if config.head != "scalar" or policy.actor.std is not None or self.judged != "action":
            raise ConfigError("cal-ql needs a scalar head, a learned standard deviation and critics on actions")
        self.columns |= {RETURN: Column()}
        self.least = max(value_limits[0] if config.value_low is None else config.value_low, UNKNOWN)

    def annotate(self, observation: Observation, action: Tensor, reward: Tensor, rng: torch.Generator) -> Observation:
        added = super().annotate(observation, action, reward, rng)
        return added | {RETURN: returns_to_go(reward, self.config.discount, self.least)}

    def act(self, observation: Observation, rng: torch.Generator, phase: LearningPhase) -> tuple[Tensor, Observation]:
        action, kept = super().act(observation, rng, phase)
        return action, kept | {RETURN: torch.full((len(action),), self.least, device=self.device)}

    def _critic_loss(self, batch: Batch, out: Tensor, target: Tensor) -> Tensor:
        loss, c = super()._critic_loss(batch, out, target), self.config
        if not c.conservative:
            return loss
        policy, features = self.policy, self.policy.features(batch)
        following = {k.removeprefix(NEXT): v for k, v in batch.items() if k.startswith(NEXT)}
        values = []
        for observed in (batch, following):
            with torch.no_grad():
                read = policy.actor_features(observed).repeat(c.actions, 1)
                u, log_prob = policy.actor.sample(read, self.rng)
                tiled = {k: observed[k].repeat(c.actions, *[1] * (observed[k].dim() - 1)) for k in policy.inputs}
                action = policy.transform(u, tiled)
            q = self.critic.value(features.repeat(c.actions, 1), action)  # (E, N * B)
            if c.calibrated:
                q = torch.maximum(q, batch[RETURN].repeat(c.actions))
            values.append((q - log_prob).unflatten(1, (c.actions, -1)))
        u = 2 * torch.rand(c.actions * len(features), policy.latent, generator=self.rng).to(self.device) - 1
        q = self.critic.value(features.repeat(c.actions, 1), u)
        values.append((q + policy.latent * math.log(2)).unflatten(1, (c.actions, -1)))
        everywhere = torch.cat(values, 1).logsumexp(1) - math.log(3 * c.actions)
        gap = everywhere - self.critic.head.mean(out)
        return loss + c.conservative * gap.mean(1).sum()


def returns_to_go(reward: Tensor, discount: float, least: float = 0.0) -> Tensor:
    """Return the discounted reward (T,) from each step to the end of an episode, and `least` from there on."""
    steps = torch.arange(len(reward), dtype=torch.float64, device=reward.device)
    weights = torch.triu(discount ** (steps - steps[:, None]))
    return (weights @ reward.double() + discount ** (len(reward) - steps) * least).float()
