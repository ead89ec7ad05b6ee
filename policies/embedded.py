"""A tanh-Gaussian that reads a learned embedding of the state (Fujimoto et al. 2025, MR.Q, 2501.16142)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.encoder import Encoder, EncoderConfig
from policies.networks.gaussian import GaussianActor, GaussianConfig
from robot_rl.util.limits import PositiveInt


@dataclass(frozen=True)
class EmbeddedConfig(GaussianConfig):
    """Gaussian actor on a state embedding."""

    embedding: PositiveInt = 128
    """Size of the embedding and width of its network."""


def embedding(inputs: int, width: int) -> nn.Sequential:
    """Return three linear layers, each with LayerNorm and ELU, from (B, inputs) to (B, width)."""
    layers: list[nn.Module] = []
    for size in (inputs, width, width):
        layers += [nn.Linear(size, width), nn.LayerNorm(width, elementwise_affine=False), nn.ELU()]
    return nn.Sequential(*layers)


class StateEmbedding(Encoder):
    """Encoder of observations as embeddings (B, width)."""

    def __init__(self, reads: Size, config: EncoderConfig, width: int):
        super().__init__(reads, config)
        self.net = embedding(self.size, width)
        self.size = width

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        return self.net(super().forward(state, observation))


class EmbeddedPolicy(GaussianPolicy):
    """A Gaussian of the state's embedding."""

    class_name, config_class = "embedded", EmbeddedConfig
    config: EmbeddedConfig
    encoder: StateEmbedding

    def __init__(self, size: Size, config: EmbeddedConfig | None = None):
        config = config or EmbeddedConfig()
        super().__init__(size, config)
        self.encoder = StateEmbedding(size, config.encoder, config.embedding)
        self.actor = GaussianActor(self.encoder.size, self.horizon * size.action, config)
