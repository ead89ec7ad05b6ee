"""Policy conditioned on directions in a learned goal embedding: Park et al. 2024, "Foundation Policies with Hilbert
Representations" (HILP, arXiv 2402.15567).

    skill  = (phi(goal) - phi(achieved)) / |phi(goal) - phi(achieved)|
    action = actor(state without its goal, skill)

Distances in the embedding phi are numbers of steps to a goal, so a skill points along the shortest path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from policies.actor import GaussianPolicy
from policies.base import Observation, Size, from_json, mlp
from policies.networks.encoder import Encoder, EncoderConfig
from policies.networks.gaussian import GaussianActor, GaussianConfig
from robot_rl.util.limits import PositiveInt

SKILL = "skill"
"""Observation key of the skill, a unit vector in the embedding (B, embedding)."""


@dataclass(frozen=True)
class HilbertConfig(GaussianConfig):
    """Gaussian actor and goal embedding."""

    embedding: PositiveInt = 32
    """Number of dimensions of the goal embedding."""
    metric: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the hidden layers of the embedding network."""


@dataclass(frozen=True)
class GoalIndices:
    """Indices of the goal components of observation.state."""

    achieved: tuple[int, ...]
    wanted: tuple[int, ...]
    difference: tuple[int, ...] = ()

    def others(self, size: int) -> list[int]:
        """Return the indices of the components that do not depend on the goal, in a state of `size` components."""
        hidden = {*self.wanted, *self.difference}
        return [k for k in range(size) if k not in hidden]


class SkillEncoder(Encoder):
    """Encoder whose features are the normalized state without the goal, followed by the skill."""

    def __init__(self, reads: Size, config: EncoderConfig, indices: GoalIndices, skill: int):
        super().__init__(reads, config)
        self.kept = indices.others(reads.observation)
        self.size = len(self.kept) + skill

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([state[:, self.kept], observation[SKILL]], -1)


class HilbertPolicy(GaussianPolicy):
    """Gaussian policy of the state and a skill; the skill is computed from the goal in the state."""

    class_name, config_class = "hilbert", HilbertConfig
    traceable = False
    config: HilbertConfig

    def __init__(self, size: Size, config: HilbertConfig, indices: GoalIndices):
        super().__init__(size, config)
        self.indices = indices
        self.inputs = {SKILL: config.embedding}
        self.encoder = SkillEncoder(size, config.encoder, indices, config.embedding)
        self.actor = GaussianActor(self.encoder.size, self.horizon * size.action, config)
        self.metric = mlp([len(indices.achieved), *config.metric, config.embedding], torch.nn.GELU, norm=True)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"indices": asdict(self.indices)}

    @classmethod
    def build(cls, description: dict[str, Any]) -> HilbertPolicy:
        config = from_json(HilbertConfig, description["config"])
        return cls(Size.from_json(description["size"]), config, from_json(GoalIndices, description["indices"]))

    def achieved(self, state: Tensor) -> Tensor:
        """Return the achieved goals (B, G) of states (B, D)."""
        return state[:, list(self.indices.achieved)]

    def scaled(self, goals: Tensor) -> Tensor:
        """Return achieved or desired goals (B, G), standardized by the statistics of achieved goals."""
        at = list(self.indices.achieved)
        return (goals - self.normalizer.mean[at]) / self.normalizer.std[at]

    def embed(self, goals: Tensor) -> Tensor:
        """Return embeddings (B, embedding) of achieved or desired goals (B, G)."""
        return self.metric(self.scaled(goals))

    def actor_features(self, observation: Observation) -> Tensor:
        return self.features(observation)  # the skill is in the encoder's features, because critics need it

    @torch.no_grad()
    def sample_inputs(self, observation: Observation, rng: torch.Generator) -> Observation:
        state = observation["observation.state"]
        wanted = state[:, list(self.indices.wanted)]
        return {SKILL: normalize(self.embed(wanted) - self.embed(self.achieved(state)), dim=-1)}

    def peek_inputs(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        return self.sample_inputs(observation, rng)

    def inputs_of_episode(self, observation: Observation, rng: torch.Generator) -> Observation:
        return self.sample_inputs(observation, rng)
