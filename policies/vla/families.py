"""Picture formats of the families of vision-language models. Each model's own forward pass does the rest: it inserts
pictures between words and computes positions and masks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class Family:
    """Picture format of one family."""

    config: Any
    """The model's configuration."""
    pixels: int
    """Requested height and width, for models that accept any size."""

    @property
    def side(self) -> int:
        """Return the height and width of pictures."""
        return int(self.config.vision_config.image_size)

    @property
    def tokens(self) -> int:
        """Return the number of tokens per picture."""
        return int((self.side // self.config.vision_config.patch_size) ** 2)

    @abstractmethod
    def inputs(self, pictures: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Return model arguments for normalized pictures (B, n, 3, side, side), given token ids (B, N)."""


class Bidirectional(Family):
    """PaliGemma: one token per patch, and bidirectional attention over the prompt."""

    def inputs(self, pictures: Tensor, ids: Tensor) -> dict[str, Tensor]:
        return {"pixel_values": pictures.flatten(0, 1), "token_type_ids": torch.zeros_like(ids)}


class Shuffled(Family):
    """SmolVLM and Idefics 3: one token per block of neighbouring patches (pixel shuffle)."""

    @property
    def tokens(self) -> int:
        return int(super().tokens // self.config.scale_factor**2)

    def inputs(self, pictures: Tensor, ids: Tensor) -> dict[str, Tensor]:
        return {"pixel_values": pictures.contiguous()}


class Flattened(Family):
    """Qwen 2 and 2.5: pictures of any size as rows of patches, ordered so that patches of one token are adjacent."""

    @property
    def side(self) -> int:
        step = self.config.vision_config.patch_size * self.config.vision_config.spatial_merge_size
        return int(max(round(self.pixels / step), 1) * step)

    @property
    def tokens(self) -> int:
        vision = self.config.vision_config
        return int((self.side // (vision.patch_size * vision.spatial_merge_size)) ** 2)

    def inputs(self, pictures: Tensor, ids: Tensor) -> dict[str, Tensor]:
        vision, flat = self.config.vision_config, pictures.flatten(0, 1)
        split = (-1, vision.spatial_merge_size, vision.patch_size)
        patches = flat.unflatten(3, split).unflatten(2, split).permute(0, 2, 5, 3, 6, 1, 4, 7)
        video = patches[..., None, :, :].expand(*patches.shape[:6], vision.temporal_patch_size, *patches.shape[6:])
        across = self.side // vision.patch_size
        grid = torch.tensor([[1, across, across]], device=ids.device).expand(len(flat), 3)
        return {
            "pixel_values": video.flatten(5).flatten(0, 4),
            "image_grid_thw": grid,
            "mm_token_type_ids": (ids == self.config.image_token_id).int(),
        }


FAMILIES: dict[str, type[Family]] = {
    "smolvlm": Shuffled,
    "idefics3": Shuffled,
    "paligemma": Bidirectional,
    "qwen2_vl": Flattened,
    "qwen2_5_vl": Flattened,
}
"""By `model_type` of config.json."""


def family_of(config: Any, pixels: int) -> Family:
    """Return the family of a model's configuration; ConfigError if unknown."""
    if config.model_type not in FAMILIES:
        raise ConfigError(
            f"models of type {config.model_type!r} are not known; known: {', '.join(FAMILIES)} (SmolVLM, Idefics 3, "
            "PaliGemma, Qwen2-VL, Qwen2.5-VL)"
        )
    return FAMILIES[config.model_type](config, pixels)
