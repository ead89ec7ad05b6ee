"""Small vision-language backbone: a transformer over words, pictures and the robot's state. Its readout tokens are the
features of an action head.

    [words | a token per picture | state | readouts] -> transformer -> readouts

The instruction modulates the convolutions by FiLM (Perez et al. 2018, arXiv 1709.07871), as in BC-Z and RT-1. A
picture's token is the spatial softmax of the last convolution, which learns positions from fewer demonstrations than
patch tokens. Readouts follow Octo (2024, arXiv 2405.12213).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from policies.base import Observation, Size
from policies.networks.encoder import SpatialSoftmax, camera_name, scaled
from policies.vla.adapted import AdaptedBackbone
from policies.vla.config import GROUPS, BackboneConfig, augment_inputs, mask_dropped_state, pictures_of
from policies.vla.words import MOST, NOTHING, LanguageTower, block
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE


class FiLM(nn.Module):
    """Convolution whose channels are scaled and shifted by the instruction."""

    def __init__(self, inputs: int, channels: int, language: int, stride: int):
        super().__init__()
        self.convolution = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1)
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.film = nn.Linear(language, 2 * channels)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, language: Tensor) -> Tensor:
        """Return maps (B, channels, H / stride, W / stride) for x (B, inputs, H, W) and instructions (B, language)."""
        scale, shift = self.film(language)[..., None, None].chunk(2, 1)
        return torch.relu(self.norm(self.convolution(x)) * (1 + scale) + shift)


class VisionTower(nn.Module):
    """Encode a picture as one token (B, width) by spatial softmax."""

    def __init__(self, config: BackboneConfig):
        super().__init__()
        inputs, width = (3, *config.channels), config.width
        halving = [FiLM(a, b, width, 2) for a, b in zip(inputs, config.channels, strict=False)]
        self.layers = nn.ModuleList([*halving, FiLM(inputs[-1], inputs[-1], width, 1)])
        self.places = SpatialSoftmax()
        self.token = nn.Linear(3 * inputs[-1], width)

    def forward(self, pictures: Tensor, language: Tensor) -> Tensor:
        """Return tokens (B, width) of uint8 pictures (B, H, W, 3), given encoded instructions (B, width)."""
        x = scaled(pictures)
        for layer in self.layers:
            x = layer(x, language)
        return self.token(self.places(x))


class Backbone(nn.Module):
    """Encode observations as features (B, size)."""

    def __init__(self, reads: Size, config: BackboneConfig):
        super().__init__()
        self.config, self.shapes = config, pictures_of(reads)
        width = config.width
        self.language = LanguageTower(config.words, width, config.heads)
        self.vision = nn.ModuleDict({camera_name(key): VisionTower(config) for key in self.shapes})
        self.state = nn.Linear(reads.observation, width)
        self.readout = nn.Parameter(0.02 * torch.randn(config.readouts, width))
        self.trunk = nn.ModuleList(block(width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.size = config.readouts * width

    def augment(self, observation: Observation, rng: torch.Generator, prefix: str = "") -> Observation:
        """Return an observation, whose keys begin with `prefix`, with shifted pictures and some states dropped."""
        return augment_inputs(observation, self.shapes, self.config, rng, prefix)

    def read(self, text: Tensor) -> Tensor:
        """Return word indices (B, MOST) int64 of instructions (B, bytes); `forward` accepts instructions or indices."""
        numbers = self.language.tokens(decode(self._unless_blind(text)))
        return pad(numbers, (0, MOST - numbers.shape[1]), value=NOTHING)

    def _unless_blind(self, text: Tensor) -> Tensor:
        return torch.zeros_like(text) if self.config.blind and text.dtype == torch.uint8 else text

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Return features (B, size) of normalized state (B, D), pictures and instruction."""
        tokens = self.tokens(state, observation)[0]
        return tokens[:, -self.config.readouts :].flatten(1)

    def tokens(self, state: Tensor, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return all tokens (B, N, width), readouts last, and the mask (B, N) bool, true for padding."""
        words, absent = self.language(self._unless_blind(observation[LANGUAGE]))
        present = (~absent).float()[..., None]
        meaning = (words * present).sum(1) / present.sum(1)
        pictures = [self.vision[camera_name(key)](observation[key], meaning)[:, None] for key in self.shapes]
        proprioception = mask_dropped_state(self.state(state), observation)[:, None]
        readouts = self.readout.expand(len(state), -1, -1)
        tokens = torch.cat([words, *pictures, proprioception, readouts], 1)
        padding = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        padding[:, : words.shape[1]] = absent
        for layer in self.trunk:
            tokens = layer(tokens, src_key_padding_mask=padding)
        return self.norm(tokens), padding


def build_backbone(reads: Size, config: BackboneConfig) -> Backbone | AdaptedBackbone:
    """Return the configured backbone: a pretrained model, or the small backbone with fresh weights."""
    return AdaptedBackbone(reads, config) if config.pretrained.model else Backbone(reads, config)
