"""SmolVLA as a policy (Shukor et al. 2025, arXiv 2506.01844).

    x_t = t noise + (1 - t) actions        network(x_t, t, observation) -> noise - actions, integrated from t = 1 to 0

A bundle contains all weights. It needs only config.json and tokenizer of SmolVLM, and stores their hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from policies.base import Observation, Policy, Size, normal
from policies.networks import pretrained
from policies.vla.config import pictures_of
from policies.vla.smolvla_network import SmolVLANetwork
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeInt, PositiveFloat, PositiveInt

STATE = "observation.state"


@dataclass(frozen=True)
class SmolVLAConfig:
    """SmolVLA with LeRobot's defaults."""

    model: str = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
    """Folder or hub name of the SmolVLM that provides configuration and tokenizer."""
    horizon: PositiveInt = 50
    """Actions predicted at once."""
    execute: PositiveInt = 50
    """Actions executed before the next prediction."""
    sample_steps: PositiveInt = 10
    """Euler steps."""
    state_size: PositiveInt = 32
    """Size of states after zero padding."""
    action_size: PositiveInt = 32
    """Size of actions after zero padding."""
    side: PositiveInt = 512
    """Height and width of pictures after resizing and padding."""
    longest: PositiveInt = 48
    """Largest number of tokens of an instruction; the rest is cut off."""
    layers: NonNegativeInt = 16
    """Number of first layers of the language model to use; 0: all."""
    self_every: NonNegativeInt = 2
    """Spacing of the expert's layers with self-attention among actions; 0: no such layers."""
    expert_share: Fraction = 0.75
    """Width of the expert relative to the language model."""
    min_period: PositiveFloat = 4e-3
    """Shortest period of the sinusoidal time embedding."""
    max_period: PositiveFloat = 4.0
    """Longest period of the sinusoidal time embedding."""
    pictures: tuple[str, ...] = ()
    """Picture keys in input order; empty: the task's order."""

    def __post_init__(self) -> None:
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")


class SmolVLAPolicy(Policy):
    """Flow policy: an action expert that attends to a vision-language model."""

    class_name, config_class = "smolvla", SmolVLAConfig
    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    def __init__(self, size: Size, config: SmolVLAConfig | None = None):
        """Build with fresh weights; ConfigError if SmolVLM is incomplete or the task does not fit."""
        super().__init__()
        self.size, self.config = size, config or SmolVLAConfig()
        c, shapes = self.config, pictures_of(size)
        self.horizon, self.execute = c.horizon, c.execute
        self.pictures = c.pictures or tuple(shapes)
        if absent := [key for key in self.pictures if key not in shapes]:
            raise ConfigError(f"the policy sees {absent[0]}, which the task lacks: it has {', '.join(shapes)}")
        if size.observation > c.state_size or size.action > c.action_size:
            raise ConfigError(
                f"the task has {size.observation} states and {size.action} actions, SmolVLA at most {c.state_size} and "
                f"{c.action_size}"
            )
        folder = pretrained.find(c.model, weights=False)
        described = pretrained.load_config(folder, c.layers)
        if described.model_type != "smolvlm":
            raise ConfigError(f"SmolVLA reads with SmolVLM, but {c.model} is {described.model_type}; name another")
        self.tokenizer = pretrained.load_tokenizer(folder)
        self.network = SmolVLANetwork(c, described)
        self.network.vlm.requires_grad_(False)
        for name, count in (("state", size.observation), ("action", size.action)):
            self.register_buffer(f"{name}_mean", torch.zeros(count))
            self.register_buffer(f"{name}_std", torch.ones(count))
        pretrained.add_fingerprint(self, c.model, folder, weights=False)

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Fit the statistics of demonstrated states and actions, rows (N, ...)."""
        for name, key in (("state", STATE), ("action", "action")):
            getattr(self, f"{name}_mean").copy_(columns[key].mean(0))
            getattr(self, f"{name}_std").copy_(columns[key].std(0))

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the squared velocity error (B,) for chunks (B, horizon, A), padded components included."""
        actions = self._padded((chunk - self.action_mean) / (self.action_std + 1e-8), self.config.action_size)
        noise = normal(actions.shape, rng, actions.device)
        # Times from Beta(1.5, 1), by inversion: more samples with much noise.
        time = 0.001 + 0.999 * torch.rand(len(chunk), generator=rng, device=rng.device).to(chunk.device) ** (1 / 1.5)
        share = time[:, None, None]
        velocity = self.network.velocity(share * noise + (1 - share) * actions, time, *self._read(observation))
        return (velocity - (noise - actions)).square().mean((1, 2))

    @torch.no_grad()
    def chunk(self, observation: Observation, noise: Tensor) -> Tensor:
        """Integrate noise (B, horizon, action_size) to actions (B, horizon, A) in the units of the data."""
        read, x, steps = self._read(observation), noise, self.config.sample_steps
        for k in range(steps):
            x = x - self.network.velocity(x, x.new_full((len(x),), 1 - k / steps), *read) / steps
        return x[..., : self.size.action] * self.action_std + self.action_mean

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        shape = (len(observation[STATE]), self.horizon, self.config.action_size)
        return self.chunk(observation, normal(shape, rng, self.action_mean.device)).clamp(-1, 1)

    def _read(self, observation: Observation) -> tuple[Any, Tensor]:
        """Return the cache and mask of an observation for the network's `velocity`."""
        state = (observation[STATE] - self.state_mean) / (self.state_std + 1e-8)
        texts = [f"{text}\n" for text in decode(observation[LANGUAGE])]
        words = self.tokenizer(
            texts, padding=True, padding_side="right", truncation=True, max_length=self.config.longest,
            return_tensors="pt",
        ).to(state.device)  # fmt: skip
        pictures = torch.stack([self._fitted(observation[key]) for key in self.pictures], 1)
        present = words["attention_mask"].bool()
        return self.network.read(pictures, words["input_ids"], present, self._padded(state, self.config.state_size))

    def _fitted(self, pictures: Tensor) -> Tensor:
        """Resize uint8 pictures (B, H, W, 3) to (B, 3, side, side) in [-1, 1], with black padding left and top."""
        side, x = self.config.side, pictures.permute(0, 3, 1, 2).float() / 255
        ratio = max(x.shape[2] / side, x.shape[3] / side)
        height, width = int(x.shape[2] / ratio), int(x.shape[3] / ratio)
        x = interpolate(x, (height, width), mode="bilinear", align_corners=False)
        return pad(x, (side - width, 0, side - height, 0)) * 2 - 1

    @staticmethod
    def _padded(x: Tensor, size: int) -> Tensor:
        """Pad x (..., n) with zeros to (..., size)."""
        return pad(x, (0, size - x.shape[-1]))
