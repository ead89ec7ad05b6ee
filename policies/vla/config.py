"""Settings of vision-language backbones, and their shared preprocessing of observations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation, Size, uniform
from policies.networks.encoder import augmented
from policies.networks.pretrained import PretrainedConfig
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeInt, PositiveInt

DROPPED = "state_dropped"
"""Observation key of a (B,) bool tensor: true where the robot's state is masked."""
GROUPS = 8
"""Number of groups of the group normalization."""


@dataclass(frozen=True)
class BackboneConfig:
    """Sizes of a vision-language backbone."""

    width: PositiveInt = 128
    """Size of a token."""
    heads: PositiveInt = 4
    """Number of attention heads."""
    layers: PositiveInt = 2
    """Number of layers of the transformer."""
    readouts: PositiveInt = 4
    """Number of readout tokens, whose outputs are the features."""
    channels: tuple[PositiveInt, ...] = (16, 32, 64)
    """Channels of the convolutions with stride 2; a further convolution has stride 1."""
    shift: NonNegativeInt = 2
    """Largest random shift of a picture in training, pixels; 0: none."""
    state_dropout: Fraction = 0.5
    """Share of training samples whose robot state is masked: otherwise a clone could infer the demonstrator's target
    from the arm's position and ignore the pictures."""
    blind: bool = False
    """Ignore the instruction, as a control condition of experiments."""
    words: tuple[str, ...] = field(default=())
    """Vocabulary of instructions; recipes take it from the task and its demonstrations."""
    pretrained: PretrainedConfig = field(default_factory=PretrainedConfig)
    """Pretrained model that replaces convolutions, words and transformer; if set, the settings of those are ignored."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if not self.channels or any(c % GROUPS for c in self.channels):
            raise ValueError(f"channels are {self.channels}; each must be a multiple of {GROUPS}")

    @property
    def known(self) -> tuple[str, ...]:
        """Return the vocabulary of instructions; () if it is open, as it is for pretrained models."""
        return () if self.pretrained.model else self.words


def pictures_of(reads: Size) -> dict[str, tuple[int, ...]]:
    """Return the pictures' shapes by key; ConfigError if the inputs lack pictures or instructions."""
    if LANGUAGE not in reads.extra_inputs or not reads.pictures:
        lacks = "pictures" if LANGUAGE in reads.extra_inputs else "instructions"
        raise ConfigError(f"this task has no {lacks}, which a vision-language policy reads; take another recipe")
    return reads.pictures


def augment_inputs(
    observation: Observation, pictures: Mapping[str, Any], config: BackboneConfig, rng: torch.Generator, prefix: str
) -> Observation:
    """Return an observation, whose keys begin with `prefix`, with shifted pictures and some states dropped."""
    moved, share = augmented(observation, list(pictures), config.shift, rng, prefix), config.state_dropout
    if not share:
        return moved
    count = len(observation[prefix + LANGUAGE])
    return moved | {prefix + DROPPED: uniform((count,), rng, rng.device) < share}


def mask_dropped_state(token: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
    """Return state tokens (B, width), with 0 in rows whose state is dropped."""
    if DROPPED not in observation:
        return token
    return torch.where(observation[DROPPED].to(token.device)[:, None], 0.0, token)
