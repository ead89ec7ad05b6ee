"""A pretrained vision model under the encoder of pictures: a map of its features for each picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from policies.networks import pretrained
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt


@dataclass(frozen=True)
class VisionConfig:
    """A pretrained vision model, such as a ResNet, ConvNeXt, ViT, DINOv2 or SigLIP."""

    model: str = ""
    """Its folder, or its name on the Hugging Face hub; empty: convolutions that learn from nothing."""
    train: Literal["frozen", "full"] = "frozen"
    """What of it is trained: nothing, or all weights; the statistics of batch normalization stay as they are."""
    pixels: NonNegativeInt = 0
    """Height and width that pictures get; 0: what the model was trained with, or where that does not matter, none."""


class PretrainedVision(nn.Module):
    """Feature maps (B, channels, h, w) of pictures, uint8 (B, H, W, 3)."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: VisionConfig):
        """Load the model; ConfigError names what is missing."""
        super().__init__()
        self.config = config
        folder = pretrained.find(config.model)
        described = pretrained.load_config(folder, 0)
        whole = pretrained.load_model(folder, described, torch.float32)
        self.model = getattr(whole, "vision_model", whole)  # of one that reads text as well
        if getattr(whole.config, "vision_config", None) is not None and self.model is whole:
            raise ConfigError(f"{folder} is no vision model but a {described.model_type}; take it with recipe vla-sft")
        if config.train == "frozen":
            self.model.requires_grad_(False)
        self.side = config.pixels or _fixed_side(self.model.config)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in pretrained.load_statistics(folder))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        pretrained.remember(self, config.model, folder)
        if config.train == "frozen":
            pretrained.leave_out_untrained(self, "model")

    def train(self, mode: bool = True) -> PretrainedVision:
        """Train what is trained of it; its own layers always act as they do when it is used."""
        super().train(mode)
        self.model.eval()
        return self

    @torch.no_grad()
    def map_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Return the shape (channels, h, w) of the map of pictures; ConfigError where the model cannot read them."""
        try:
            channels, *size = self.eval()(torch.zeros(1, height, width, 3, dtype=torch.uint8)).shape[1:]
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.config.model} does not read pictures of {self.side or f'{height}x{width}'} pixels "
                f"({str(error).strip().splitlines()[0]}); choose others with --policy.encoder.vision.pixels"
            ) from None
        return channels, size[0], size[1]

    def forward(self, pictures: Tensor) -> Tensor:
        """Return feature maps (B, channels, h, w)."""
        x = pictures.permute(0, 3, 1, 2).float() / 255
        if self.side:
            x = interpolate(x, (self.side, self.side), mode="bilinear", align_corners=False, antialias=True)
        x = (x - self.mean) / self.std
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.train != "frozen"):
            found: Tensor = self.model(pixel_values=x).last_hidden_state
        if found.ndim == 4:
            return found
        across = math.isqrt(found.shape[1])  # of square patches, after tokens of the whole picture
        return found[:, found.shape[1] - across**2 :].transpose(1, 2).unflatten(2, (across, across))


def _fixed_side(described: Any) -> int:
    """Return the size of pictures that a transformer was trained with; 0 for convolutions, which read any."""
    size = getattr(described, "image_size", 0)
    return size if isinstance(size, int) and hasattr(described, "num_attention_heads") else 0
