"""Policy conditioned on directions in a learned goal embedding: Park et al. 2024, "Foundation Policies with Hilbert
Representations" (HILP, arXiv 2402.15567).

    skill  = (phi(goal) - phi(achieved)) / |phi(goal) - phi(achieved)|
    action = actor(state without its goal, skill)

Distances in the embedding phi are numbers of steps to a goal, so a skill points along the shortest path. A policy with
a stored prompt takes its skill from there and ignores the goal in the state.
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
from robot_rl.util.limits import NonNegativeInt, PositiveInt, validate

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


@dataclass(frozen=True)
class Prompt:
    """Shape of a stored prompt: a skill, or points of the embedding to go to in order."""

    vectors: PositiveInt = 1
    """Number of stored vectors."""
    ahead: NonNegativeInt = 0
    """0: the one stored vector is the skill. Otherwise the vectors are points, and the skill points to the one this
    many places after the nearest point, at most to the last one."""

    def __post_init__(self) -> None:
        validate(self)
        if self.vectors > 1 and not self.ahead:
            raise ValueError(f"{self.vectors} stored vectors are no skill: a skill is one vector")


class SkillEncoder(Encoder):
    """Encoder whose features are the normalized state without the goal, followed by the skill."""

    def __init__(self, reads: Size, config: EncoderConfig, indices: GoalIndices, skill: int):
        super().__init__(reads, config)
        self.kept = indices.others(reads.observation)
        self.size = len(self.kept) + skill

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([state[:, self.kept], observation[SKILL]], -1)


class HilbertPolicy(GaussianPolicy):
    """Gaussian policy of the state and a skill, which is computed from a stored prompt, or else from the goal in the
    state."""

    class_name, config_class = "hilbert", HilbertConfig
    traceable = False
    config: HilbertConfig
    stored: Tensor

    def __init__(self, size: Size, config: HilbertConfig, indices: GoalIndices, prompt: Prompt | None = None):
        super().__init__(size, config)
        self.indices, self.prompt = indices, prompt
        self.inputs = {SKILL: config.embedding}
        self.encoder = SkillEncoder(size, config.encoder, indices, config.embedding)
        self.actor = GaussianActor(self.encoder.size, self.horizon * size.action, config)
        self.metric = mlp([len(indices.achieved), *config.metric, config.embedding], torch.nn.GELU, norm=True)
        if prompt:
            self.register_buffer("stored", torch.zeros(prompt.vectors, config.embedding))

    def describe(self) -> dict[str, Any]:
        stored = {"prompt": asdict(self.prompt)} if self.prompt else {}
        return super().describe() | {"indices": asdict(self.indices)} | stored

    @classmethod
    def build(cls, description: dict[str, Any]) -> HilbertPolicy:
        config = from_json(HilbertConfig, description["config"])
        prompt = from_json(Prompt, description["prompt"]) if "prompt" in description else None
        indices = from_json(GoalIndices, description["indices"])
        return cls(Size.from_json(description["size"]), config, indices, prompt)

    def prompted(self, stored: Tensor, ahead: int = 0) -> HilbertPolicy:
        """Return a policy with the same weights and the prompt `stored` (vectors, embedding), see `Prompt`."""
        made = HilbertPolicy(self.size, self.config, self.indices, Prompt(len(stored), ahead)).to(stored.device)
        made.load_state_dict(self.state_dict() | {"stored": stored})
        made.train(self.training)
        return made

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
        if self.prompt and not self.prompt.ahead:
            return {SKILL: self.stored.expand(len(state), -1)}
        at = self.embed(self.achieved(state))
        if self.prompt:
            following = torch.cdist(at, self.stored).argmin(1) + self.prompt.ahead
            to = self.stored[following.clamp_max(self.prompt.vectors - 1)]
        else:
            to = self.embed(state[:, list(self.indices.wanted)])
        return {SKILL: normalize(to - at, dim=-1)}

    def peek_inputs(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        return self.sample_inputs(observation, rng)

    def inputs_of_episode(self, observation: Observation, rng: torch.Generator) -> Observation:
        return self.sample_inputs(observation, rng)
