"""SmolVLA (Shukor et al. 2025, arXiv 2506.01844) as a policy, and LeRobot's checkpoints of it.

    x_t = t noise + (1 - t) actions        network(x_t, t, observation) -> noise - actions, integrated from t = 1 to 0

A bundle holds all weights; from SmolVLM itself it needs config.json and tokenizer alone, whose hash it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
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
    """SmolVLA; the defaults are those of LeRobot."""

    model: str = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
    """Folder or name of the SmolVLM whose configuration and tokenizer are used."""
    horizon: PositiveInt = 50
    """Actions predicted at once."""
    execute: PositiveInt = 50
    """Actions executed before the next prediction."""
    sample_steps: PositiveInt = 10
    """Euler steps."""
    state_size: PositiveInt = 32
    """Numbers to which states are filled up."""
    action_size: PositiveInt = 32
    """Numbers to which actions are filled up."""
    side: PositiveInt = 512
    """Height and width to which pictures are enlarged or reduced, and filled up."""
    longest: PositiveInt = 48
    """Tokens of an instruction that are read."""
    layers: NonNegativeInt = 16
    """Layers of the language model that are used, the first ones; 0: all."""
    self_every: NonNegativeInt = 2
    """Every so many layers of the expert actions see earlier ones; 0: none."""
    expert_share: Fraction = 0.75
    """Width of the expert, of the language model's."""
    min_period: PositiveFloat = 4e-3
    """Shortest period of the sines of time."""
    max_period: PositiveFloat = 4.0
    """Longest period of the sines of time."""
    pictures: tuple[str, ...] = ()
    """Keys of the observation's pictures in the order in which they are read; empty: the task's."""

    def __post_init__(self) -> None:
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")


class SmolVLAPolicy(Policy):
    """Integrate noise along the velocity of an action expert that looks into a vision-language model."""

    class_name, config_class = "smolvla", SmolVLAConfig
    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    def __init__(self, size: Size, config: SmolVLAConfig | None = None):
        """Build with fresh weights; ConfigError names what of SmolVLM is missing or does not fit the task."""
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
        pretrained.remember(self, c.model, folder, weights=False)

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Take means and standard deviations of demonstrated states and actions, rows (N, ...)."""
        for name, key in (("state", STATE), ("action", "action")):
            getattr(self, f"{name}_mean").copy_(columns[key].mean(0))
            getattr(self, f"{name}_std").copy_(columns[key].std(0))

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the squared error (B,) of velocities for chunks (B, horizon, A), filled-up actions included."""
        actions = self._filled((chunk - self.action_mean) / (self.action_std + 1e-8), self.config.action_size)
        noise = normal(actions.shape, rng, actions.device)
        # The power makes it a draw of Beta(1.5, 1): rather more noise than less.
        time = 0.001 + 0.999 * torch.rand(len(chunk), generator=rng, device=rng.device).to(chunk.device) ** (1 / 1.5)
        share = time[:, None, None]
        velocity = self.network.velocity(share * noise + (1 - share) * actions, time, *self._read(observation))
        return (velocity - (noise - actions)).square().mean((1, 2))

    @torch.no_grad()
    def chunk(self, observation: Observation, noise: Tensor) -> Tensor:
        """Return the actions (B, horizon, A), in the units of the data, to which noise (B, horizon, action_size)
        flows."""
        read, x, steps = self._read(observation), noise, self.config.sample_steps
        for k in range(steps):
            x = x - self.network.velocity(x, x.new_full((len(x),), 1 - k / steps), *read) / steps
        return x[..., : self.size.action] * self.action_std + self.action_mean

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        shape = (len(observation[STATE]), self.horizon, self.config.action_size)
        return self.chunk(observation, normal(shape, rng, self.action_mean.device)).clamp(-1, 1)

    def _read(self, observation: Observation) -> tuple[Any, Tensor]:
        """Return what the network's `velocity` takes of an observation."""
        state = (observation[STATE] - self.state_mean) / (self.state_std + 1e-8)
        told = [f"{text}\n" for text in decode(observation[LANGUAGE])]
        words = self.tokenizer(
            told, padding=True, padding_side="right", truncation=True, max_length=self.config.longest,
            return_tensors="pt",
        ).to(state.device)  # fmt: skip
        pictures = torch.stack([self._fitted(observation[key]) for key in self.pictures], 1)
        present = words["attention_mask"].bool()
        return self.network.read(pictures, words["input_ids"], present, self._filled(state, self.config.state_size))

    def _fitted(self, pictures: Tensor) -> Tensor:
        """Return uint8 pictures (B, H, W, 3) as (B, 3, side, side) in [-1, 1], black at the left and the top."""
        side, x = self.config.side, pictures.permute(0, 3, 1, 2).float() / 255
        ratio = max(x.shape[2] / side, x.shape[3] / side)
        height, width = int(x.shape[2] / ratio), int(x.shape[3] / ratio)
        x = interpolate(x, (height, width), mode="bilinear", align_corners=False)
        return pad(x, (side - width, 0, side - height, 0)) * 2 - 1

    @staticmethod
    def _filled(x: Tensor, size: int) -> Tensor:
        """Return x (..., n) filled up with zeros (..., size)."""
        return nn.functional.pad(x, (0, size - x.shape[-1]))
