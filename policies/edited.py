"""Edits of a frozen policy's chunks, from a few features of its own: RL Token (RLT, Physical Intelligence 2026).

    token = principal components of the base's features
    chunk = clip(base chunk + scale * actor(token, state, base chunk), -1, 1)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from policies.actor import ActorPolicy, FrozenFeatures
from policies.base import Normalizer, Observation, Policy, build_policy, from_json
from policies.networks.chunks import ChunkPolicy
from policies.networks.encoder import FEATURES, BaseFeatures
from policies.networks.gaussian import GaussianActor, GaussianConfig
from policies.residual import BASE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class EditedConfig:
    """Edits of a base policy's chunks."""

    scale: NonNegativeFloat = 0.5
    """Largest edit, in units of the action range [-1, 1]; 0: exactly the base policy."""
    token: PositiveInt = 16
    """Number of features that the actor and the critics read of a visual base policy."""
    actor: GaussianConfig = field(default_factory=lambda: GaussianConfig(std=0.1, zero_init=True))

    def __post_init__(self) -> None:
        if self.actor.grasp or self.actor.horizon != 1:
            raise ConfigError("an edit has the length of the base's chunk and no gripper critic; see resfit for one")


class Token(nn.Module):
    """Whitened principal components of a base policy's features."""

    center: Tensor
    directions: Tensor

    def __init__(self, features: int, size: int):
        super().__init__()
        self.register_buffer("center", torch.zeros(features))
        self.register_buffer("directions", torch.eye(features)[:, :size].contiguous())

    def forward(self, features: Tensor) -> Tensor:
        """Return tokens (B, size) of features (B, F)."""
        return (features - self.center) @ self.directions

    def fit(self, features: Tensor) -> None:
        """Set the components to those of `features` (N, F). Directions without variance become 0."""
        self.center.copy_(features.mean(0))
        _, deviation, axes = torch.linalg.svd(features - self.center, full_matrices=False)
        deviation = deviation / max(len(features) - 1, 1) ** 0.5
        kept = min(self.directions.shape[1], len(deviation))
        scale = torch.where(deviation > 1e-6 * deviation.max().clamp_min(1e-12), 1 / deviation, 0.0)
        self.directions.zero_()[:, :kept] = axes[:kept].T * scale[:kept]


class EditedPolicy(ActorPolicy):
    """Chunk = first `execute` actions of the base's chunk, plus a bounded edit."""

    class_name, config_class = "edited", EditedConfig

    def __init__(self, base: Policy, config: EditedConfig | None = None):
        super().__init__()
        if not isinstance(base, ChunkPolicy):
            raise ConfigError(f"a {base.class_name} policy has no chunks to edit; take a diffusion or flow policy")
        self.config = config or EditedConfig()
        self.base = base.requires_grad_(False).eval()
        self.size, self.horizon, self.execute = base.size, base.execute, base.execute
        self.normalizer = Normalizer(base.size.observation)
        self.normalizer.load_state_dict({k: v for k, v in base.normalizer.state_dict().items() if k != "count"})
        self.base_features = FrozenFeatures(base, self.config.actor.encoder, True)
        self.encoder: Any = self.base_features.encoder
        self.token: Token | None = None
        actions = self.horizon * base.size.action
        self.inputs = {BASE: actions}
        if self.base_features.base is not None:
            self.token = Token(base.encoder.size, min(self.config.token, base.encoder.size))
            width = self.token.directions.shape[1]
            self.encoder, self.inputs = BaseFeatures(base.size, width), {BASE: actions, FEATURES: width}
        self.actor = GaussianActor(self.encoder.size + actions, actions, self.config.actor)
        self.explore = False

    def describe(self) -> dict[str, Any]:
        return {"class": self.class_name, "config": asdict(self.config), "base": self.base.describe()}

    @classmethod
    def build(cls, description: dict[str, Any]) -> EditedPolicy:
        return cls(build_policy(description["base"]), from_json(EditedConfig, description["config"]))

    @torch.no_grad()
    def fit_token(self, observation: Observation) -> None:
        """Set the token's components to those of the observations' features, each of which is a row."""
        if self.token is not None:
            self.token.fit(self.base_features(observation)[FEATURES])

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        return (observation[BASE] + self.config.scale * u).clamp(-1, 1)

    def invert(self, action: Tensor, observation: Observation) -> Tensor | None:
        return ((action - observation[BASE]) / self.config.scale).clamp(-1, 1) if self.config.scale else None

    @torch.no_grad()
    def sample_inputs(self, observation: Observation, rng: torch.Generator) -> Observation:
        features = self.base_features(observation)
        chunk = self.base.act(observation | features, rng)[:, : self.horizon].flatten(1)
        return {BASE: chunk} | ({FEATURES: self.token(features[FEATURES])} if self.token is not None else {})

    def peek_inputs(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        found = self.sample_inputs({k: v[rows] for k, v in observation.items()}, rng)
        inputs = {k: v.new_zeros(len(rows), v.shape[1]) for k, v in found.items()}
        for name, values in found.items():
            inputs[name][rows] = values
        return inputs

    def inputs_of_episode(self, observation: Observation, rng: torch.Generator) -> Observation:
        columns = [v.split(FrozenFeatures.ROWS) for v in observation.values()]
        parts = [self.sample_inputs(dict(zip(observation, p, strict=True)), rng) for p in zip(*columns, strict=True)]
        return {name: torch.cat([part[name] for part in parts]) for name in self.inputs}
