"""Choose among samples of a flow that clones the data, and edits of the samples, by learned values.

    candidates   a_k ~ flow(s) and a_k + scale * actor(s, a_k);   action = candidate with the highest mean value

Dong et al. 2025, "EXPO: Stable Reinforcement Learning with Expressive Policies" (2507.07986). Without edits
this is the best-of-N form of Q-chunking (Li et al. 2025, 2507.07969) and IDQL (Hansen-Estruch et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Normalizer, Observation, Size, from_json
from policies.generative import FlowActor, GenerativeConfig
from policies.networks.encoder import Encoder
from policies.networks.ensemble import ActionValues
from policies.networks.gaussian import GaussianActor, GaussianConfig
from robot_rl.util.limits import NonNegativeFloat, PositiveInt

Values = Callable[[Tensor, Tensor], Tensor]
"""Function that returns the values (E, B) by E critics of features (B, F) and actions (B, A)."""


@dataclass(frozen=True)
class BestOfConfig:
    """Best-of-N policy: a flow, and an actor that edits the flow's samples."""

    candidates: PositiveInt = 8
    """Number N of samples of the flow; if `scale` is above 0, each sample has one edited copy."""
    scale: NonNegativeFloat = 0.2
    """Largest edit, in units of the action range [-1, 1]; 0: no edits."""
    flow: GenerativeConfig = field(default_factory=GenerativeConfig)
    """Flow that clones the data."""
    actor: GaussianConfig = field(default_factory=GaussianConfig)
    """Actor that edits the samples."""


@dataclass(frozen=True)
class CriticSize:
    """Size of the critics that choose the action, equal to the size of the agent's critics."""

    critics: PositiveInt = 2
    """Number of critics in the ensemble."""
    hidden: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the hidden layers."""
    layer_norm: bool = True
    """LayerNorm before each activation."""


class BestOfPolicy(ActorPolicy):
    """Sample candidates, add edited copies and return the candidate with the highest value; u is the action itself."""

    class_name, config_class = "best-of", BestOfConfig

    def __init__(self, size: Size, config: BestOfConfig | None = None, critic: CriticSize | None = None):
        super().__init__()
        self.size, self.config, self.critic_size = size, config or BestOfConfig(), critic or CriticSize()
        flow, critic = self.config.flow, self.critic_size
        self.horizon = self.execute = flow.horizon
        actions = self.horizon * size.action
        self.normalizer = Normalizer(size.observation, math.inf)
        self.encoder = Encoder(size, flow.encoder)
        self.flow = FlowActor(self.encoder.size, actions, flow)
        self.actor = GaussianActor(self.encoder.size + actions, actions, self.config.actor)
        self.critic = ActionValues(self.encoder.size, actions, critic.critics, critic.hidden, critic.layer_norm)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"critic": asdict(self.critic_size)}

    @classmethod
    def build(cls, description: dict[str, Any]) -> BestOfPolicy:
        config, critic = from_json(BestOfConfig, description["config"]), from_json(CriticSize, description["critic"])
        return cls(Size.from_json(description["size"]), config, critic)

    def edit(self, features: Tensor, action: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return edited actions (B, A) and the log-probability (B,) of the edits."""
        delta, log_prob = self.actor.sample(torch.cat([features, action], -1), rng)
        return (action + self.config.scale * delta).clamp(-1, 1), log_prob

    @torch.no_grad()
    def best(self, features: Tensor, rng: torch.Generator, values: Values | None = None) -> Tensor:
        """Return the best candidate (B, A) for features (B, F), judged by `values` (None: the policy's critics)."""
        rows, n = len(features), self.config.candidates
        every = features.repeat_interleave(n, 0)
        sampled = self.flow.sample(every, rng)[0].clamp(-1, 1)
        candidates = [sampled.view(rows, n, -1)]
        if self.config.scale:
            candidates.append(self.edit(every, sampled, rng)[0].view(rows, n, -1))
        actions = torch.cat(candidates, 1)
        if actions.shape[1] == 1:
            return actions[:, 0]
        each, flat = features.repeat_interleave(actions.shape[1], 0), actions.flatten(0, 1)
        value = self.critic(each, flat).squeeze(-1) if values is None else values(each, flat)
        choice = value.mean(0).view(rows, -1).argmax(1)
        return actions[torch.arange(rows, device=choice.device), choice]

    def _action(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.best(self.features(observation), rng).unflatten(1, (self.horizon, -1))
