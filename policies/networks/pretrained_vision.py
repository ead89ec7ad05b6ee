"""Pretrained vision models as the first stage of the picture encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from policies.networks import pretrained
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import NonNegativeInt


@dataclass(frozen=True)
class VisionConfig:
    """Pretrained vision model, such as a ResNet, ConvNeXt, ViT, DINOv2 or SigLIP."""

    model: str = ""
    """Folder or name on the Hugging Face hub; empty: convolutions trained from scratch."""
    train: Literal["frozen", "full"] = "frozen"
    """Trained weights: none (frozen) or all (full). In both cases batch normalization keeps its statistics."""
    pixels: NonNegativeInt = 0
    """Height and width of resized pictures, pixels; 0: the model's training size, or no resizing if any size fits."""


class PretrainedVision(nn.Module):
    """Pretrained model that maps uint8 pictures (B, H, W, 3) to feature maps (B, channels, h, w)."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: VisionConfig):
        """Load the model; ConfigError names what is missing in its folder."""
        super().__init__()
        self.config = config
        folder = pretrained.find(config.model)
        described = pretrained.load_config(folder, 0)
        whole = pretrained.load_model(folder, described, torch.float32)
        self.model = getattr(whole, "vision_model", whole)  # the vision tower of CLIP-like models
        if getattr(whole.config, "vision_config", None) is not None and self.model is whole:
            raise ConfigError(f"{folder} is no vision model but a {described.model_type}; take it with recipe vla-sft")
        if config.train == "frozen":
            self.model.requires_grad_(False)
        self.side = config.pixels or _fixed_side(self.model.config)
        for name, values in pretrained.load_statistics(folder).items():
            self.register_buffer(name, values, persistent=False)
        pretrained.add_fingerprint(self, config.model, folder)
        if config.train == "frozen":
            pretrained.save_only_trained(self, "model")

    def train(self, mode: bool = True) -> PretrainedVision:
        """Set the training mode of all but the pretrained layers, which stay in evaluation mode."""
        super().train(mode)
        self.model.eval()
        return self

    @torch.no_grad()
    def map_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Return the shape (channels, h, w) of a picture's feature map; ConfigError if the model rejects this size."""
        try:
            channels, *size = self.eval()(torch.zeros(1, height, width, 3, dtype=torch.uint8)).shape[1:]
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.config.model} does not read pictures of {self.side or f'{height}x{width}'} pixels "
                f"({str(error).strip().splitlines()[0]}); choose others with --policy.encoder.vision.pixels"
            ) from None
        return channels, size[0], size[1]

    def forward(self, pictures: Tensor) -> Tensor:
        """Return feature maps (B, channels, h, w) of uint8 pictures (B, H, W, 3)."""
        x = pretrained.normalized(pictures, self.side, self.mean, self.std)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.train != "frozen"):
            hidden: Tensor = self.model(pixel_values=x).last_hidden_state
        if hidden.ndim == 4:
            return hidden
        across = math.isqrt(hidden.shape[1])  # patches per side; class and register tokens come first
        return hidden[:, hidden.shape[1] - across**2 :].transpose(1, 2).unflatten(2, (across, across))


def _fixed_side(described: Any) -> int:
    """Return the height and width of a transformer's training pictures; 0 for convolutions, which accept any size."""
    size = getattr(described, "image_size", 0)
    return size if isinstance(size, int) and hasattr(described, "num_attention_heads") else 0
