"""A small vision-language backbone: convolutions that the instruction modulates, words and the robot's state, joined by
a transformer, whose readout tokens are the features of an action head.

    [words | a token per picture | state | readouts] -> transformer -> readouts

Modulation is FiLM (Perez et al. 2018, arXiv 1709.07871) as BC-Z and RT-1 use it. A picture's token holds where each
channel of the last convolution is strongest, and how strong it is: with few demonstrations, places are learned sooner
than from patches. Readouts are those of Octo (2024, arXiv 2405.12213).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from policies.base import Observation, Size
from policies.encoder import Places, augmented, camera_name, scaled
from policies.pretrained import PretrainedConfig
from policies.vla.words import MOST, NOTHING, LanguageTower, block
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeInt, PositiveInt

DROPPED = "state_dropped"
"""Rows (B,) bool of a batch whose state is not read."""
GROUPS = 8
"""Groups of channels that are normalized together."""

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
    """Channels of the convolutions that halve height and width; one more keeps them."""
    shift: NonNegativeInt = 2
    """Largest random shift of a picture in training, pixels; 0: none."""
    state_dropout: Fraction = 0.5
    """Share of samples in training without the robot's state: where the arm is often tells where a demonstrator is
    going, and a clone that knows it does not look."""
    blind: bool = False
    """Do not read the instruction: a control."""
    words: tuple[str, ...] = field(default=())
    """Vocabulary; a recipe takes it from the task and its demonstrations."""
    pretrained: PretrainedConfig = field(default_factory=PretrainedConfig)
    """A model in place of convolutions, words and transformer, whose settings do not count then."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if not self.channels or any(c % GROUPS for c in self.channels):
            raise ValueError(f"channels are {self.channels}; each must be a multiple of {GROUPS}")

    @property
    def known(self) -> tuple[str, ...]:
        """Return the words that it knows; (): any, as a pretrained model does."""
        return () if self.pretrained.model else self.words

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


def perturbed(
    observation: Observation, pictures: Mapping[str, Any], config: BackboneConfig, rng: torch.Generator, prefix: str
) -> Observation:
    """Return the observation, whose keys begin with `prefix`, with pictures shifted and some states dropped."""
    moved, share = augmented(observation, list(pictures), config.shift, rng, prefix), config.state_dropout
    if not share:
        return moved
    count = len(observation[prefix + LANGUAGE])
    return moved | {prefix + DROPPED: torch.rand(count, generator=rng, device=rng.device) < share}


def felt(token: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
    """Return tokens (B, width) of the state, 0 where it is dropped."""
    if DROPPED not in observation:
        return token
    return torch.where(observation[DROPPED].to(token.device)[:, None], 0.0, token)


class Modulated(nn.Module):
    """A convolution whose channels the instruction scales and shifts."""

    def __init__(self, inputs: int, channels: int, language: int, stride: int):
        super().__init__()
        self.convolution = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1)
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.film = nn.Linear(language, 2 * channels)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, language: Tensor) -> Tensor:
        """Return (B, channels, H / stride, W / stride) for x (B, inputs, H, W) and instructions (B, language)."""
        scale, shift = self.film(language)[..., None, None].chunk(2, 1)
        return torch.relu(self.norm(self.convolution(x)) * (1 + scale) + shift)


class VisionTower(nn.Module):
    """A token (B, width) of a picture: where each channel is strongest, and how strong."""

    def __init__(self, config: BackboneConfig):
        super().__init__()
        inputs, width = (3, *config.channels), config.width
        halving = [Modulated(a, b, width, 2) for a, b in zip(inputs, config.channels, strict=False)]
        self.layers = nn.ModuleList([*halving, Modulated(inputs[-1], inputs[-1], width, 1)])
        self.places = Places()
        self.token = nn.Linear(3 * inputs[-1], width)

    def forward(self, pictures: Tensor, language: Tensor) -> Tensor:
        """Return tokens of uint8 pictures (B, H, W, 3) for instructions (B, width)."""
        x = scaled(pictures)
        for layer in self.layers:
            x = layer(x, language)
        return self.token(self.places(x))


class Backbone(nn.Module):
    """Features (B, size) of observations with leading dimension B."""

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
        """Return the observation, whose keys begin with `prefix`, with pictures shifted and some states dropped."""
        return perturbed(observation, self.shapes, self.config, rng, prefix)

    def read(self, text: Tensor) -> Tensor:
        """Return the numbers of words (B, MOST) int64 of instructions (B, bytes), which `forward` takes as well."""
        numbers = self.language.tokens(decode(self._heard(text)))
        return pad(numbers, (0, MOST - numbers.shape[1]), value=NOTHING)

    def _heard(self, text: Tensor) -> Tensor:
        return torch.zeros_like(text) if self.config.blind and text.dtype == torch.uint8 else text

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Return features (B, size) of the normalized state (B, D), the pictures and the instruction."""
        tokens = self.tokens(state, observation)[0]
        return tokens[:, -self.config.readouts :].flatten(1)

    def tokens(self, state: Tensor, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return all tokens (B, N, width), the readouts last, and which of them are filling (B, N)."""
        words, absent = self.language(self._heard(observation[LANGUAGE]))
        present = (~absent).float()[..., None]
        meaning = (words * present).sum(1) / present.sum(1)
        pictures = [self.vision[camera_name(key)](observation[key], meaning)[:, None] for key in self.shapes]
        proprioception = felt(self.state(state), observation)[:, None]
        readouts = self.readout.expand(len(state), -1, -1)
        tokens = torch.cat([words, *pictures, proprioception, readouts], 1)
        filling = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        filling[:, : words.shape[1]] = absent
        for layer in self.trunk:
            tokens = layer(tokens, src_key_padding_mask=filling)
        return self.norm(tokens), filling
