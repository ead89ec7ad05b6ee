"""Vision-language-action policy that decodes action tokens, as RT-2 and OpenVLA (Kim et al. 2024, arXiv 2406.09246), so
the exact probability of a chunk is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from policies.base import Normalizer, Observation, Policy, Size
from policies.vla.backbone import build_backbone
from policies.vla.codec import BinCodec, Codec, CosineCodec
from policies.vla.config import BackboneConfig
from policies.vla.decoder import Decoder
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class VLATokensConfig:
    """Vision-language-action policy with action tokens."""

    horizon: PositiveInt = 8
    """Actions predicted at once."""
    execute: PositiveInt = 8
    """Actions executed before the next prediction."""
    codec: Literal["bins", "dct"] = "dct"
    """Tokens of a chunk: one bin per action, or the lowest frequencies of each action dimension."""
    bins: Annotated[int, Interval(ge=2)] = 128
    """Number of values of a token."""
    kept: PositiveInt = 3
    """Number of lowest frequencies to keep (dct)."""
    layers: PositiveInt = 2
    """Layers of the decoder."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature of tokens; 0: the most likely tokens."""
    encoder: BackboneConfig = field(default_factory=BackboneConfig)

    def __post_init__(self) -> None:
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")
        if self.codec not in ("bins", "dct"):
            raise ValueError(f"codec is {self.codec!r}; choose bins or dct")
        if self.codec == "dct" and self.kept > self.horizon:
            raise ValueError(f"kept {self.kept} is more than horizon {self.horizon} has; lower kept")

    def make_codec(self, actions: int) -> Codec:
        """Return the codec for a number of action dimensions."""
        if self.codec == "bins":
            return BinCodec(self.horizon, actions, self.bins)
        return CosineCodec(self.horizon, actions, self.bins, self.kept)


class VLATokensPolicy(Policy):
    """Decode a chunk's tokens, conditioned on pictures, instruction and state."""

    class_name, config_class = "vla-tokens", VLATokensConfig

    def __init__(self, size: Size, config: VLATokensConfig | None = None):
        super().__init__()
        self.size, self.config = size, config or VLATokensConfig()
        c = self.config
        self.horizon, self.execute, self.codec = c.horizon, c.execute, c.make_codec(size.action)
        self.normalizer = Normalizer(size.observation)
        self.encoder = build_backbone(size, c.encoder)
        width, heads = c.encoder.width, c.encoder.heads
        self.decoder = Decoder(c.encoder.readouts, self.codec.length, c.bins, width, heads, c.layers)
        self.traceable = not c.temperature

    @property
    def words(self) -> tuple[str, ...]:
        known: tuple[str, ...] = self.config.encoder.known
        return known

    def fit(self, columns: dict[str, Tensor]) -> None:
        """Fit the normalizer to demonstrated rows (N, ...)."""
        self.normalizer.fit(columns["observation.state"])

    def features(self, observation: Observation) -> Tensor:
        """Return the decoder's prefix (B, readouts, width)."""
        flat = self.encoder(self.normalizer(observation["observation.state"]), observation)
        return flat.unflatten(1, (self.config.encoder.readouts, -1))

    def log_prob(self, features: Tensor, tokens: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log-probability (B, L) of tokens (B, L) at a sampling temperature."""
        logits = self.decoder(features, tokens) / temperature
        return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    @torch.no_grad()
    def sample(self, features: Tensor, temperature: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return sampled tokens (B, L) and their log-probability (B, L), which for temperature 0 is that of 1."""
        tokens, logits = self.decoder.write(features, temperature, rng)
        shares = (logits / (temperature or 1.0)).log_softmax(-1)
        return tokens, shares.gather(-1, tokens[..., None])[..., 0]

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the mean negative log-probability (B,) of the tokens of chunks (B, horizon, A) in [-1, 1]."""
        return -self.log_prob(self.features(self.encoder.augment(observation, rng)), self.codec.encode(chunk)).mean(1)

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        tokens, _ = self.sample(self.features(observation), self.config.temperature, rng)
        return self.codec.decode(tokens)
