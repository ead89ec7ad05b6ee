"""Encode an observation dict as features: normalized state, hashed instruction, and an embedding of each picture.

    features = [state, words, embed(first picture), embed(second picture), ...]

Random shifts follow DrQ (Yarats et al. 2021, "Image Augmentation Is All You Need"); the network resembles DrQ's, but
has strides in every layer.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from policies.base import Observation, Size
from policies.networks.pretrained_vision import PretrainedVision, VisionConfig
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt, PositiveInt, validate
from robot_rl.util.ranks import drawn

FEATURES = "features"
"""Observation key of the features of a frozen base policy."""


@dataclass(frozen=True)
class EncoderConfig:
    """Networks for picture embeddings."""

    channels: tuple[PositiveInt, ...] = (16, 32, 32, 32)
    """Channels of the 3x3 convolutions, each of which halves height and width."""
    embedding: PositiveInt = 64
    """Number of features per picture."""
    shift: NonNegativeInt = 4
    """Largest random shift of a picture in training, pixels; 0: none."""
    pooling: Literal["all", "places"] = "all"
    """Pooling of the last convolution's output: all (flattened), or places (spatial softmax: expected position and peak
    per channel; the last convolution then has stride 1)."""
    vision: VisionConfig = field(default_factory=VisionConfig)
    """Pretrained model that replaces the convolutions, if set; then only the last of `channels` is used."""

    def __post_init__(self) -> None:
        validate(self)

    def build(self, reads: Size) -> Encoder:
        """Return an encoder with fresh weights."""
        return Encoder(reads, self)


class Encoder(nn.Module):
    """Encode observations as features (B, size)."""

    def __init__(self, reads: Size, config: EncoderConfig):
        super().__init__()
        self.config, self.shapes = config, reads.pictures
        if other := [key for key in reads.extra_inputs if key not in self.shapes and key != LANGUAGE]:
            raise ConfigError(f"this policy cannot read {other[0]!r}; take a task without it, or another recipe")
        self.words = WORDS * (LANGUAGE in reads.extra_inputs)
        shared = bool(config.vision.model and self.shapes)
        self.vision = PretrainedVision(config.vision) if shared else None  # one model for all cameras
        self.cameras = nn.ModuleDict({camera_name(key): self._embed(key) for key in self.shapes})
        self.size = reads.observation + self.words + len(self.shapes) * config.embedding

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Return features (B, size) of the normalized state (B, D), the instruction uint8 (B, bytes), and pictures
        uint8 (B, H, W, 3)."""
        parts = [self.read(observation[LANGUAGE])] if self.words else []
        prepare = scaled if self.vision is None else self.vision
        parts += [self.cameras[camera_name(key)](prepare(observation[key])) for key in self.shapes]
        return torch.cat([state, *parts], -1) if parts else state

    def _embed(self, key: str) -> nn.Sequential:
        """Return one camera's network from its pictures, or feature maps, to embeddings (B, embedding) in [-1, 1]."""
        c = self.config
        if self.vision is None:
            layers, shape = _convolutions(key, self.shapes[key], c)
        else:
            channels, height, width = self.vision.map_shape(*self.shapes[key][:2])
            layers = [nn.Conv2d(channels, c.channels[-1], 1), nn.ReLU()]
            shape = (c.channels[-1], height, width)
        pool, size = (SpatialSoftmax(), 3 * shape[0]) if c.pooling == "places" else (nn.Flatten(), math.prod(shape))
        return nn.Sequential(*layers, pool, nn.Linear(size, c.embedding), nn.LayerNorm(c.embedding), nn.Tanh())

    def read(self, text: Tensor) -> Tensor:
        """Return features (B, WORDS) of instructions (B, bytes); `forward` accepts instructions or these features."""
        return hashed_words(text) if text.dtype == torch.uint8 else text

    def augment(self, observation: Observation, rng: torch.Generator, prefix: str = "") -> Observation:
        """Return an observation, whose keys begin with `prefix`, with every picture randomly shifted."""
        return augmented(observation, list(self.shapes), self.config.shift, rng, prefix)


class BaseFeatures(nn.Module):
    """Encoder that appends a frozen base policy's features to the state. The features are computed once, when acting,
    and stored in the replay, which then needs no pictures."""

    shapes: ClassVar[dict[str, tuple[int, ...]]] = {}

    def __init__(self, reads: Size, width: int):
        super().__init__()
        self.size = reads.observation + width

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Return the normalized state (B, D) followed by the base's features (B, width)."""
        return torch.cat([state, observation[FEATURES]], -1)

    def augment(self, observation: Observation, rng: torch.Generator, prefix: str = "") -> Observation:
        """Return the observation unchanged."""
        return observation


class SpatialSoftmax(nn.Module):
    """Spatial softmax: expected position and peak of each channel (Levine et al. 2016, arXiv 1504.00702)."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.zeros(()))
        """Logarithm of the inverse temperature of the softmax."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, 3 C) for x (B, C, H, W): each channel's expected column and row in [-1, 1], then all maxima."""
        height, width = x.shape[2:]
        y = torch.linspace(-1, 1, height, device=x.device)[:, None].expand(height, width)
        grid = torch.stack([torch.linspace(-1, 1, width, device=x.device).expand(height, width), y], -1).flatten(0, 1)
        flat = x.flatten(2)
        share = (flat * self.sharpness.exp()).softmax(-1)
        return torch.cat([(share @ grid).flatten(1), flat.amax(-1)], 1)


def augmented(
    observation: Observation, keys: list[str], shift: int, rng: torch.Generator, prefix: str = ""
) -> Observation:
    """Return the observation with pictures `prefix + key` randomly shifted by up to `shift` pixels."""
    if not shift:
        return observation
    return observation | {prefix + key: shifted(observation[prefix + key], shift, rng) for key in keys}


def scaled(pictures: Tensor) -> Tensor:
    """Return uint8 pictures (B, H, W, 3) as floats (B, 3, H, W) in [-1, 1]."""
    return pictures.permute(0, 3, 1, 2).float() / 127.5 - 1


def shifted(pictures: Tensor, most: int, rng: torch.Generator) -> Tensor:
    """Randomly shift each of the pictures (B, H, W, C) by up to `most` pixels; edges are replicated."""
    count, height, width, _ = pictures.shape
    offset = drawn(partial(torch.randint, -most, most + 1), (2, count, 1), rng, pictures.device, rows=1)
    rows = (torch.arange(height, device=pictures.device) + offset[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=pictures.device) + offset[1]).clamp(0, width - 1)
    each = torch.arange(count, device=pictures.device)[:, None, None]
    return pictures[each, rows[:, :, None], columns[:, None, :]]


def camera_name(key: str) -> str:
    """Convert the key of a camera's pictures to a module name, which must not contain dots."""
    return key.removeprefix(IMAGES).replace(".", "_")


def _convolutions(key: str, shape: tuple[int, ...], config: EncoderConfig) -> tuple[list[nn.Module], tuple[int, ...]]:
    """Return one camera's convolutions, which read floats (B, 3, H, W), and the shape (C, H, W) of their output."""
    height, width, channels = shape
    if min(height, width) < 2 ** len(config.channels):
        raise ConfigError(
            f"{key} is {height}x{width}: too small for {len(config.channels)} convolutions; take fewer "
            "`channels` of the encoder, or larger pictures"
        )
    layers: list[nn.Module] = []
    for k, out in enumerate(config.channels, 1):
        stride = 1 if config.pooling == "places" and k == len(config.channels) else 2
        layers += [nn.Conv2d(channels, out, 3, stride=stride, padding=1), nn.ReLU()]
        channels, height, width = out, math.ceil(height / stride), math.ceil(width / stride)
    return layers, (channels, height, width)


WORDS = 64
"""Number of features of an instruction."""


def hashed_words(text: Tensor, size: int = WORDS) -> Tensor:
    """Return fixed features (B, size) of instructions (B, bytes) uint8, by which a policy distinguishes instructions.

    Each word and each pair of adjacent words adds a random sign vector, seeded by a hash of its spelling (feature
    hashing, Weinberger et al. 2009, arXiv 0902.2206). The features need no vocabulary and no parameters.
    """
    distinct, index = torch.unique(text, dim=0, return_inverse=True)
    return torch.stack([_features(words, size) for words in decode(distinct)]).to(text.device)[index]


@lru_cache(10_000)
def _features(text: str, size: int) -> Tensor:
    words = re.findall(r"\w+", text.lower())
    parts = [*words, *map(" ".join, zip(words, words[1:], strict=False))]
    total = torch.zeros(size)
    for part in parts:
        rng = torch.Generator().manual_seed(zlib.crc32(part.encode()))
        total += 2.0 * torch.randint(0, 2, (size,), generator=rng) - 1
    return total / max(1, len(parts)) ** 0.5
