"""Pretrained vision-language model as a backbone.

It reads pictures and instruction in its own format, followed by embeddings of the robot's state and learned readouts.
The readouts' outputs are the features of an action head.

    [pictures | words | state | readouts] -> vision-language model -> readouts
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from policies.base import Observation, Size
from policies.networks import pretrained
from policies.networks.pretrained import PretrainedConfig
from policies.vla.config import BackboneConfig, augment_inputs, mask_dropped_state, pictures_of
from policies.vla.families import family_of
from robot_rl.interface.language import LONGEST, decode
from robot_rl.interface.observation_spec import LANGUAGE


class AdaptedBackbone(nn.Module):
    """Encode observations as features (B, size), like `Backbone`."""

    mean: Tensor
    std: Tensor

    def __init__(self, reads: Size, config: BackboneConfig):
        """Load the model; ConfigError names what is missing."""
        super().__init__()
        self.config, self.shapes, chosen = config, pictures_of(reads), config.pretrained
        folder = pretrained.find(chosen.model)
        described = pretrained.load_config(folder, chosen.layers)
        self.family = family_of(described, chosen.pixels)
        self.tokenizer = pretrained.load_tokenizer(folder)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in pretrained.load_statistics(folder))
        # Not saved, because they belong to the model.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.model = _adapted(folder, described, chosen)
        # Token ids around a picture (Qwen).
        self._marks = [getattr(described, f"vision_{name}_token_id", None) for name in ("start", "end")]
        hidden = described.get_text_config().hidden_size
        self.state = nn.Linear(reads.observation, hidden)
        self.readout = nn.Parameter(0.02 * torch.randn(config.readouts, hidden))
        self.norm, self.output = nn.LayerNorm(hidden), nn.Linear(hidden, config.width)
        self.size = config.readouts * config.width
        pretrained.remember(self, chosen.model, folder)
        if chosen.train != "full":
            pretrained.leave_out_untrained(self, "model")

    def augment(self, observation: Observation, rng: torch.Generator, prefix: str = "") -> Observation:
        """Return the observation with pictures shifted and some states dropped; its keys have the given prefix."""
        return augment_inputs(observation, self.shapes, self.config, rng, prefix)

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Return features (B, size) of normalized state (B, D), pictures and instruction."""
        text, bfloat16 = observation[LANGUAGE], self.config.pretrained.dtype == "bfloat16"
        padded = self._prompt(text) if text.dtype == torch.uint8 else text
        ids, present = torch.where(padded < 0, padded[:, -1:], padded), (padded >= 0).long()
        pictures = torch.stack([self._fitted(observation[key]) for key in self.shapes], 1)
        proprioception = mask_dropped_state(self.state(state), observation)[:, None]
        last = torch.cat([proprioception, self.readout.expand(len(state), -1, -1)], 1)
        with torch.autocast(state.device.type, torch.bfloat16, enabled=bfloat16), self._ending_with(last):
            inputs = self.family.inputs(pictures, ids)
            outputs = self.model(input_ids=ids, attention_mask=present, use_cache=False, **inputs)
        readouts = outputs.last_hidden_state[:, -self.config.readouts :].float()
        return self.output(self.norm(readouts)).flatten(1)

    def _fitted(self, pictures: Tensor) -> Tensor:
        """Return uint8 pictures (B, H, W, 3) resized to a square and normalized, (B, 3, side, side)."""
        side = (self.family.side, self.family.side)
        scaled = pictures.permute(0, 3, 1, 2).float() / 255
        fitted = interpolate(scaled, side, mode="bilinear", align_corners=False, antialias=True)
        return (fitted - self.mean) / self.std

    def read(self, text: Tensor) -> Tensor:
        """Return token ids (B, N) of instructions (B, bytes), with constant N; `forward` accepts both."""
        return self._prompt(text, len(self._ids("")) + LONGEST)

    def _prompt(self, text: Tensor, least: int = 0) -> Tensor:
        """Return token ids (B, N) of instructions (B, bytes), N at least `least`; -1 is padding.

        Left padding has no effect because positions are relative. The last ids are placeholders of state and readouts.
        """
        text = torch.zeros_like(text) if self.config.blind else text
        distinct, index = torch.unique(text, dim=0, return_inverse=True)  # a batch has few distinct instructions
        rows = [self._ids(words) for words in decode(distinct)]
        longest = max(least, *map(len, rows))
        return torch.tensor([[-1] * (longest - len(row)) + row for row in rows], device=text.device)[index]

    def _ids(self, words: str) -> list[int]:
        """Return the ids of pictures, instruction, and placeholders of state and readouts."""
        picture = self.family.config.image_token_id
        start, end = ([mark] if mark is not None else [] for mark in self._marks)
        pictures = (start + [picture] * self.family.tokens + end) * len(self.shapes)
        prompt = [token for token in self.tokenizer(words + "\n")["input_ids"] if token != picture] or [0]
        return pictures + prompt + [prompt[-1]] * (1 + self.config.readouts)

    @contextlib.contextmanager
    def _ending_with(self, last: Tensor) -> Iterator[None]:
        """Replace the model's last input embeddings by `last` (B, n, hidden)."""

        def replaced(module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor:
            return torch.cat([embedded[:, : -last.shape[1]], last.to(embedded.dtype)], 1)

        hook = self.model.get_input_embeddings().register_forward_hook(replaced)
        try:
            yield
        finally:
            hook.remove()


def _adapted(folder: Path, described: Any, chosen: PretrainedConfig) -> Any:
    """Return the model with the chosen weights trainable."""
    narrow = chosen.dtype == "bfloat16" and chosen.train != "full"
    model = pretrained.load_model(folder, described, torch.bfloat16 if narrow else torch.float32)
    words = model.get_decoder()
    if chosen.train != "full":
        model.requires_grad_(False)
    if chosen.train == "lora":
        peft = pretrained.require("peft")
        peft.inject_adapter_in_model(
            peft.LoraConfig(r=chosen.lora_rank, lora_alpha=chosen.lora_alpha, target_modules="all-linear"), words
        )
        for weight in words.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
    if chosen.gradient_checkpointing:
        words.activation_checkpointing_enable({"use_reentrant": False})
    return model
