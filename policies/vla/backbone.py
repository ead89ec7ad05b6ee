"""A small vision-language backbone: convolutions that the instruction modulates, words and the robot's state, joined by
a transformer, whose readout tokens are the features of an action head.

    [patches of each picture | words | state | readouts] -> transformer -> readouts

Modulation is FiLM (Perez et al. 2018, arXiv 1709.07871) as BC-Z and RT-1 use it; readouts are those of Octo (2024,
arXiv 2405.12213).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from policies.base import Observation, Size
from policies.encoder import augmented, scaled
from policies.vla.pretrained import PretrainedConfig
from policies.vla.words import LanguageTower, block
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt, PositiveInt

if TYPE_CHECKING:
    from policies.vla.adapted import AdaptedBackbone


@dataclass(frozen=True)
class BackboneConfig:
    """Sizes of a vision-language backbone."""

    width: PositiveInt = 128
    """Size of a token."""
    heads: PositiveInt = 4
    """Heads of attention."""
    layers: PositiveInt = 2
    """Layers of the transformer."""
    readouts: PositiveInt = 4
    """Tokens whose outputs are the features."""
    channels: tuple[PositiveInt, ...] = (16, 32, 64)
    """Channels of the convolutions before the last, whose channels are the width; each halves height and width."""
    shift: NonNegativeInt = 4
    """Largest random shift of a picture in training, pixels; 0: none."""
    blind: bool = False
    """Do not read the instruction: a control."""
    words: tuple[str, ...] = field(default=())
    """Vocabulary; a recipe takes it from the task and its demonstrations."""

    pretrained: PretrainedConfig = field(default_factory=PretrainedConfig)
    """A model in place of convolutions, words and transformer, whose settings do not count then."""

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width % 8:
            raise ValueError(f"width {self.width} is not a multiple of 8 and of heads {self.heads}")

    def build(self, reads: Size) -> Backbone | AdaptedBackbone:
        """Return the backbone with fresh weights, or with those of the pretrained model."""
        if self.pretrained.model:
            from policies.vla.adapted import AdaptedBackbone

            return AdaptedBackbone(reads, self)
        return Backbone(reads, self)


def pictures_of(reads: Size) -> dict[str, tuple[int, ...]]:
    """Return the pictures' shapes; ConfigError if there are none, or no instructions."""
    if LANGUAGE not in reads.others or not reads.pictures:
        lacks = "pictures" if LANGUAGE in reads.others else "instructions"
        raise ConfigError(f"this task has no {lacks}, which a vision-language policy reads; take another recipe")
    return reads.pictures


class Modulated(nn.Module):
    """A convolution that halves height and width, whose channels the instruction scales and shifts."""

    def __init__(self, inputs: int, channels: int, language: int):
        super().__init__()
        self.convolution = nn.Conv2d(inputs, channels, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, channels)
        self.film = nn.Linear(language, 2 * channels)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, language: Tensor) -> Tensor:
        """Return (B, channels, H/2, W/2) for x (B, inputs, H, W) and the instruction's features (B, language)."""
        scale, shift = self.film(language)[..., None, None].chunk(2, 1)
        return torch.relu(self.norm(self.convolution(x)) * (1 + scale) + shift)


class Backbone(nn.Module):
    """Features (B, size) of observations with leading dimension B."""

    def __init__(self, reads: Size, config: BackboneConfig):
        super().__init__()
        self.config, self.shapes = config, pictures_of(reads)
        width = config.width
        self.language = LanguageTower(config.words, width, config.heads)
        channels = (3, *config.channels, width)
        self.vision = nn.ModuleList(Modulated(a, b, width) for a, b in zip(channels, channels[1:], strict=False))
        cells = {key: -(-h // 2 ** len(self.vision)) * -(-w // 2 ** len(self.vision))
                 for key, (h, w, _) in self.shapes.items()}  # fmt: skip
        self.patch_place = nn.Parameter(0.02 * torch.randn(sum(cells.values()), width))
        self.state = nn.Linear(reads.observation, width)
        self.readout = nn.Parameter(0.02 * torch.randn(config.readouts, width))
        self.trunk = nn.ModuleList(block(width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.size = config.readouts * width

    def augment(self, observation: Observation, rng: torch.Generator, prefix: str = "") -> Observation:
        """Return the observation, whose keys begin with `prefix`, with every picture shifted at random."""
        return augmented(observation, list(self.shapes), self.config.shift, rng, prefix)

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Return features (B, size) of the normalized state (B, D), the pictures and the instruction."""
        tokens = self.tokens(state, observation)[0]
        return tokens[:, -self.config.readouts :].flatten(1)

    def tokens(self, state: Tensor, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return all tokens (B, N, width), the readouts last, and which of them are filling (B, N)."""
        text = observation[LANGUAGE]
        words, absent = self.language(torch.zeros_like(text) if self.config.blind else text)
        present = (~absent).float()[..., None]
        meaning = (words * present).sum(1) / present.sum(1)
        patches = torch.cat([self._see(observation[key], meaning) for key in self.shapes], 1) + self.patch_place
        proprioception, readouts = self.state(state)[:, None], self.readout.expand(len(state), -1, -1)
        tokens = torch.cat([words, patches, proprioception, readouts], 1)
        filling = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        filling[:, : words.shape[1]] = absent
        for layer in self.trunk:
            tokens = layer(tokens, src_key_padding_mask=filling)
        return self.norm(tokens), filling

    def _see(self, pictures: Tensor, meaning: Tensor) -> Tensor:
        """Return patches (B, cells, width) of uint8 pictures (B, H, W, 3)."""
        x = scaled(pictures)
        for layer in self.vision:
            x = layer(x, meaning)
        return x.flatten(2).transpose(1, 2)
