"""Calibrated Q-learning: Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online
Fine-Tuning" (2303.05479), on conservative Q-learning (Kumar et al. 2020).

    critic: TD error + weight (logsumexp_a max(Q(s, a), return of the data from s) - Q(s, a_data))

The values of the policy's actions are not pushed below the return that the data reached. If rewards are at least 0, as
for success, this bound is the recorded return. Otherwise the least possible return stands for the unknown rest after a
time limit, and for the return of the agent's own steps. If the reward has no least return, there is no bound.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.data.replay import Batch, Column
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig, Limits
from robot_rl.learning.parts.objectives import next_observation
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveInt

RETURN = "return_to_go"
"""Replay column: lower bound of the discounted return from each step."""
UNKNOWN = -1e30
"""Finite number that stands for the missing bound. With this bound the method is conservative Q-learning."""


@dataclass(frozen=True)
class CalQLConfig(ActorCriticConfig):
    conservative: NonNegativeFloat = 0.5
    """Weight of the conservative loss, which lowers the values of actions outside the data; 0: plain actor-critic."""
    actions: PositiveInt = 4
    """Number of actions sampled from each of three sources: the uniform distribution, the policy at the state, and the
    policy at the next state (paper: 10)."""
    calibrated: bool = True
    """Bound values of the policy's actions from below by the data's return; False: conservative Q-learning (CQL)."""


class CalQL(ActorCritic):
    """Actor-critic whose values are conservative, and calibrated by the data's returns."""

    config: CalQLConfig

    def _extend(self, value_limits: Limits) -> None:
        c = self.config
        if c.head != "scalar" or self.policy.actor.std is not None or self.critic_on != "action":
            raise ConfigError("cal-ql needs a scalar head, a learned standard deviation and critics on actions")
        self.columns |= {RETURN: Column()}
        self.least = max(value_limits[0] if c.value_low is None else c.value_low, UNKNOWN)

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
        values = []
        for observed in (batch, next_observation(batch)):
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
    """Return the discounted return (T,) from each step of an episode. The return after the episode's end is `least`."""
    steps = torch.arange(len(reward), dtype=torch.float64, device=reward.device)
    weights = torch.triu(discount ** (steps - steps[:, None]))
    return (weights @ reward.double() + discount ** (len(reward) - steps) * least).float()
