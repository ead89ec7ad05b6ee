"""Actor on the initial noise of a frozen chunked policy: Wagenmaker et al. 2025, "Steering Your Diffusion Policy with
Latent Space Reinforcement Learning" (DSRL, 2506.15799)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from policies.actor import ActorPolicy, FrozenFeatures
from policies.base import Normalizer, Observation, Policy, build_policy, from_json
from policies.networks.chunks import ChunkPolicy
from policies.networks.encoder import FEATURES
from policies.networks.gaussian import GaussianActor, GaussianConfig
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeFloat


@dataclass(frozen=True)
class SteeredConfig:
    """Actor on a base policy's noise."""

    scale: NonNegativeFloat = 1.5
    """Largest magnitude m of the noise; 0: the base policy with zero noise."""
    actor: GaussianConfig = field(default_factory=lambda: GaussianConfig(initial_std=0.5, layer_norm=False))
    frozen_features: bool = True
    """Read the features of a visual base policy; False: train an encoder, as published."""


class SteeredPolicy(ActorPolicy):
    """chunk = first `execute` actions of base(observation, noise = scale * actor(observation))."""

    class_name, config_class = "steered", SteeredConfig

    def __init__(self, base: Policy, config: SteeredConfig | None = None):
        super().__init__()
        if not isinstance(base, ChunkPolicy):
            raise ConfigError(f"a {base.class_name} policy has no noise to steer; take a diffusion or flow policy")
        self.config = config or SteeredConfig()
        self.base = base.requires_grad_(False).eval()
        self.size, self.horizon, self.execute = base.size, base.execute, base.execute
        self.normalizer = Normalizer(base.size.observation)
        self.normalizer.load_state_dict({k: v for k, v in base.normalizer.state_dict().items() if k != "count"})
        self.base_features = FrozenFeatures(base, self.config.actor.encoder, self.config.frozen_features)
        self.encoder, self.inputs = self.base_features.encoder, self.base_features.inputs
        self.actor = GaussianActor(self.encoder.size, base.horizon * base.size.action, self.config.actor)
        self.explore = False
        # Otherwise both encoders would have to read the instruction.
        self.traceable = FEATURES in self.inputs or LANGUAGE not in base.size.extra_inputs

    def read(self, text: Tensor) -> Tensor:
        return self.base.read(text)

    def describe(self) -> dict[str, Any]:
        return {"class": self.class_name, "config": asdict(self.config), "base": self.base.describe()}

    @classmethod
    def build(cls, description: dict[str, Any]) -> SteeredPolicy:
        return cls(build_policy(description["base"]), from_json(SteeredConfig, description["config"]))

    def sample_inputs(self, observation: Observation, rng: torch.Generator) -> Observation:
        return self.base_features(observation)

    def peek_inputs(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        return self.base_features(observation, rows)

    def inputs_of_episode(self, observation: Observation, rng: torch.Generator) -> Observation:
        return self.base_features(observation)

    @torch.no_grad()
    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        noise = self.config.scale * u.unflatten(1, (self.base.horizon, -1))
        return self.base.base(observation, noise)[:, : self.execute].flatten(1)

    def invert(self, action: Tensor, observation: Observation) -> Tensor | None:
        return None
