"""Pretrained vision-language model as a backbone.

The model reads pictures and instruction in its own format, followed by embeddings of the robot's state and learned
readouts. The readouts' outputs are the features of an action head.

    [pictures | words | state | readouts] -> vision-language model -> readouts
"""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Observation, Size
from policies.networks import pretrained
from policies.networks.pretrained import PretrainedConfig
from policies.vla.config import BackboneConfig, augment_inputs, mask_dropped_state, pictures_of
from robot_rl.interface.language import LONGEST, decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class Family:
    """Picture format of a family of vision-language models; the model's own forward pass inserts pictures between
    words, and computes positions and masks."""

    config: Any
    """The model's configuration."""
    pixels: int
    """Requested height and width of pictures, pixels, for models that accept any size."""

    @property
    def side(self) -> int:
        """Return the height and width, pixels, of the pictures that the model reads."""
        return int(self.config.vision_config.image_size)

    @property
    def tokens(self) -> int:
        """Return the number of tokens per picture."""
        return int((self.side // self.config.vision_config.patch_size) ** 2)

    @abstractmethod
    def inputs(self, pictures: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """Return the model's arguments besides token ids (B, N), for normalized pictures (B, n, 3, side, side)."""


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
    "smolvlm": Shuffled, "idefics3": Shuffled, "paligemma": Bidirectional,
    "qwen2_vl": Flattened, "qwen2_5_vl": Flattened,
}  # fmt: skip
"""Families of models by `model_type` in config.json."""


def family_of(config: Any, pixels: int) -> Family:
    """Return the family of a model's configuration; ConfigError if the type of model is unknown."""
    if config.model_type not in FAMILIES:
        raise ConfigError(
            f"models of type {config.model_type!r} are not known; known: {', '.join(FAMILIES)} (SmolVLM, Idefics 3, "
            "PaliGemma, Qwen2-VL, Qwen2.5-VL)"
        )
    return FAMILIES[config.model_type](config, pixels)


class AdaptedBackbone(nn.Module):
    """Encode observations as features (B, size), like `Backbone`."""

    mean: Tensor
    std: Tensor

    def __init__(self, reads: Size, config: BackboneConfig):
        """Load the model; ConfigError names what is missing in its folder."""
        super().__init__()
        self.config, self.shapes, chosen = config, pictures_of(reads), config.pretrained
        folder = pretrained.find(chosen.model)
        described = pretrained.load_config(folder, chosen.layers)
        self.family = family_of(described, chosen.pixels)
        self.tokenizer = pretrained.load_tokenizer(folder)
        for name, values in pretrained.load_statistics(folder).items():
            self.register_buffer(name, values, persistent=False)
        self.model = _adapted(folder, described, chosen)
        # Token ids around a picture (Qwen).
        self._marks = [getattr(described, f"vision_{name}_token_id", None) for name in ("start", "end")]
        hidden = described.get_text_config().hidden_size
        self.state = nn.Linear(reads.observation, hidden)
        self.readout = nn.Parameter(0.02 * torch.randn(config.readouts, hidden))
        self.norm, self.output = nn.LayerNorm(hidden), nn.Linear(hidden, config.width)
        self.size = config.readouts * config.width
        pretrained.add_fingerprint(self, chosen.model, folder)
        if chosen.train != "full":
            pretrained.save_only_trained(self, "model")

    def augment(self, observation: Observation, rng: torch.Generator, prefix: str = "") -> Observation:
        """Return an observation, whose keys begin with `prefix`, with shifted pictures and some states dropped."""
        return augment_inputs(observation, self.shapes, self.config, rng, prefix)

    def forward(self, state: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Return features (B, size) of normalized state (B, D), pictures and instruction."""
        text, bfloat16 = observation[LANGUAGE], self.config.pretrained.dtype == "bfloat16"
        padded = self._prompt(text) if text.dtype == torch.uint8 else text
        ids, present = torch.where(padded < 0, padded[:, -1:], padded), (padded >= 0).long()
        pictures = torch.stack([self._prepare(observation[key]) for key in self.shapes], 1)
        proprioception = mask_dropped_state(self.state(state), observation)[:, None]
        last = torch.cat([proprioception, self.readout.expand(len(state), -1, -1)], 1)
        with torch.autocast(state.device.type, torch.bfloat16, enabled=bfloat16), self._ending_with(last):
            inputs = self.family.inputs(pictures, ids)
            outputs = self.model(input_ids=ids, attention_mask=present, use_cache=False, **inputs)
        readouts = outputs.last_hidden_state[:, -self.config.readouts :].float()
        return self.output(self.norm(readouts)).flatten(1)

    def _prepare(self, pictures: Tensor) -> Tensor:
        return pretrained.normalized(pictures, self.family.side, self.mean, self.std)

    def read(self, text: Tensor) -> Tensor:
        """Return token ids (B, N) of instructions (B, bytes), with constant N; `forward` accepts either."""
        return self._prompt(text, len(self._ids("")) + LONGEST)

    def _prompt(self, text: Tensor, least: int = 0) -> Tensor:
        """Return token ids (B, N) of instructions (B, bytes), where N is at least `least`. Padding is -1 and on the
        left, without effect because positions are relative. The last ids are placeholders of state and readouts."""
        text = torch.zeros_like(text) if self.config.blind else text
        distinct, index = torch.unique(text, dim=0, return_inverse=True)  # a batch has few distinct instructions
        rows = [self._ids(words) for words in decode(distinct)]
        longest = max(least, *map(len, rows))
        return torch.tensor([[-1] * (longest - len(row)) + row for row in rows], device=text.device)[index]

    def _ids(self, words: str) -> list[int]:
        """Return the token ids of pictures, instruction `words`, and placeholders of state and readouts."""
        picture = self.family.config.image_token_id
        start, end = ([mark] if mark is not None else [] for mark in self._marks)
        pictures = (start + [picture] * self.family.tokens + end) * len(self.shapes)
        prompt = [token for token in self.tokenizer(words + "\n")["input_ids"] if token != picture] or [0]
        return pictures + prompt + [prompt[-1]] * (1 + self.config.readouts)

    @contextlib.contextmanager
    def _ending_with(self, last: Tensor) -> Iterator[None]:
        """Within the `with` block, replace the model's last input embeddings by `last` (B, n, hidden)."""

        def replaced(module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor:
            return torch.cat([embedded[:, : -last.shape[1]], last.to(embedded.dtype)], 1)

        hook = self.model.get_input_embeddings().register_forward_hook(replaced)
        try:
            yield
        finally:
            hook.remove()


def _adapted(folder: Path, described: Any, chosen: PretrainedConfig) -> Any:
    """Load the model and make the weights that `chosen.train` selects trainable."""
    narrow = chosen.dtype == "bfloat16" and chosen.train != "full"
    model = pretrained.load_model(folder, described, torch.bfloat16 if narrow else torch.float32)
    words = model.get_decoder()
    if chosen.train != "full":
        model.requires_grad_(False)
    if chosen.train == "lora":
        peft = pretrained.require("peft")
        config = peft.LoraConfig(r=chosen.lora_rank, lora_alpha=chosen.lora_alpha, target_modules="all-linear")
        peft.inject_adapter_in_model(config, words)
        for weight in words.parameters():
            if weight.requires_grad:
                weight.data = weight.data.float()
    if chosen.gradient_checkpointing:
        words.activation_checkpointing_enable({"use_reentrant": False})
    return model
