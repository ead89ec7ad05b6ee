"""The best of several actions that a cloned flow samples, and of edits of them, by learned values.

    candidates   a_k ~ flow(s), and a_k + scale * actor(s, a_k);   action = argmax of the values' mean

Dong et al. 2025, "EXPO: Stable Reinforcement Learning with Expressive Policies" (2507.07986); without edits, the
best-of-N form of Q-chunking (Li et al. 2025, 2507.07969) and IDQL (Hansen-Estruch et al. 2023).
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
from policies.encoder import Encoder
from policies.ensemble import ActionValues
from policies.gaussian import GaussianActor, GaussianConfig
from policies.generative import FlowActor, GenerativeConfig
from robot_rl.util.limits import NonNegativeFloat, PositiveInt

Judge = Callable[[Tensor, Tensor], Tensor]
"""Values (E, B) of features (B, F) and actions (B, A)."""


@dataclass(frozen=True)
class BestOfConfig:
    """A flow, an actor that edits its actions, and the choice among them."""

    candidates: PositiveInt = 8
    """Actions N that the flow samples; each has an edit beside it."""
    scale: NonNegativeFloat = 0.2
    """Largest edit, in units of the action range [-1, 1]; 0: no edits."""
    flow: GenerativeConfig = field(default_factory=GenerativeConfig)
    actor: GaussianConfig = field(default_factory=GaussianConfig)


@dataclass(frozen=True)
class JudgeConfig:
    """Size of the values that choose."""

    critics: PositiveInt = 2
    hidden: tuple[PositiveInt, ...] = (256, 256)
    layer_norm: bool = True


class BestOfPolicy(ActorPolicy):
    """Sample, edit, and take the most valuable; u is the action itself."""

    class_name, config_class = "best-of", BestOfConfig

    def __init__(self, size: Size, config: BestOfConfig | None = None, judge: JudgeConfig | None = None):
        super().__init__()
        self.size, self.config, self.judge_config = size, config or BestOfConfig(), judge or JudgeConfig()
        flow, judge = self.config.flow, self.judge_config
        self.horizon = self.execute = flow.horizon
        actions = self.horizon * size.action
        self.normalizer = Normalizer(size.observation, math.inf)
        self.encoder = Encoder(size, flow.encoder)
        self.flow = FlowActor(self.encoder.size, actions, flow)
        self.actor = GaussianActor(self.encoder.size + actions, actions, self.config.actor)
        self.judge = ActionValues(self.encoder.size, actions, judge.critics, judge.hidden, judge.layer_norm)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"judge": asdict(self.judge_config)}

    @classmethod
    def build(cls, description: dict[str, Any]) -> BestOfPolicy:
        config, judge = from_json(BestOfConfig, description["config"]), from_json(JudgeConfig, description["judge"])
        return cls(Size.from_json(description["size"]), config, judge)

    def edit(self, features: Tensor, action: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return edited actions (B, A) and the log-probability (B,) of the edits."""
        delta, log_prob = self.actor.sample(torch.cat([features, action], -1), rng)
        return (action + self.config.scale * delta).clamp(-1, 1), log_prob

    @torch.no_grad()
    def best(self, features: Tensor, rng: torch.Generator, judge: Judge | None = None) -> Tensor:
        """Return the most valuable candidates (B, A) for features (B, F)."""
        rows, n = len(features), self.config.candidates
        every = features.repeat_interleave(n, 0)
        sampled = self.flow.sample(every, rng)[0].clamp(-1, 1)
        found = [sampled.view(rows, n, -1)]
        if self.config.scale:
            found.append(self.edit(every, sampled, rng)[0].view(rows, n, -1))
        actions = torch.cat(found, 1)
        if actions.shape[1] == 1:
            return actions[:, 0]
        each = features.repeat_interleave(actions.shape[1], 0)
        value = judge(each, actions.flatten(0, 1)) if judge else self.judge(each, actions.flatten(0, 1)).squeeze(-1)
        choice = value.mean(0).view(rows, -1).argmax(1)
        return actions[torch.arange(rows, device=choice.device), choice]

    def _action(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.best(self.features(observation), rng).unflatten(1, (self.horizon, -1))

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        return u

    def invert(self, action: Tensor, observation: Observation) -> Tensor:
        return action

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Take the normalizer's statistics from demonstrated rows (N, ...)."""
        self.normalizer.fit(columns["observation.state"])
