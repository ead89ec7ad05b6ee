"""Settings of vision-language backbones, and what both kinds do with an observation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation, Size
from policies.networks.encoder import augmented
from policies.networks.pretrained import PretrainedConfig
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeInt, PositiveInt

DROPPED = "state_dropped"
"""Rows (B,) bool of a batch whose state is not read."""
GROUPS = 8
"""Groups of channels that are normalized together."""


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


def pictures_of(reads: Size) -> dict[str, tuple[int, ...]]:
    """Return the pictures' shapes; ConfigError if there are none, or no instructions."""
    if LANGUAGE not in reads.extra_inputs or not reads.pictures:
        lacks = "pictures" if LANGUAGE in reads.extra_inputs else "instructions"
        raise ConfigError(f"this task has no {lacks}, which a vision-language policy reads; take another recipe")
    return reads.pictures


def augment_inputs(
    observation: Observation, pictures: Mapping[str, Any], config: BackboneConfig, rng: torch.Generator, prefix: str
) -> Observation:
    """Return the observation, whose keys begin with `prefix`, with pictures shifted and some states dropped."""
    moved, share = augmented(observation, list(pictures), config.shift, rng, prefix), config.state_dropout
    if not share:
        return moved
    count = len(observation[prefix + LANGUAGE])
    return moved | {prefix + DROPPED: torch.rand(count, generator=rng, device=rng.device) < share}


def mask_dropped_state(token: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
    """Return tokens (B, width) of the state, 0 where it is dropped."""
    if DROPPED not in observation:
        return token
    return torch.where(observation[DROPPED].to(token.device)[:, None], 0.0, token)
