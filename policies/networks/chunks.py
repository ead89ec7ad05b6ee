"""Base of generative policies over action chunks: a network, and a map from noise to a chunk."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from policies.base import Chunk, EncodingPolicy, Normalizer, Observation, Prefix, Size, mlp, normal
from policies.networks.encoder import FEATURES, EncoderConfig
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveInt, validate


@dataclass(frozen=True)
class ChunkConfig:
    """Generative policy over action chunks."""

    horizon: PositiveInt = 16
    """Number of actions predicted at once."""
    execute: PositiveInt = 8
    """Number of actions executed before the next prediction."""
    hidden: PositiveInt = 256
    """Width of the network's hidden layers."""
    layers: Annotated[int, Interval(ge=0, le=100)] = 3
    """Number of hidden layers of the network."""
    sample_steps: PositiveInt = 10
    """Number of evaluations of the network per chunk."""
    regression: NonNegativeFloat = 0.0
    """Weight of an auxiliary loss that predicts the chunk from the features alone. It keeps the pictures in use,
    because a noisy chunk reveals much of the target without them."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)

    def __post_init__(self) -> None:
        validate(self)
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")


class Denoiser(nn.Sequential):
    """MLP of noisy actions, a condition and one or more times, for diffusion and flow policies."""

    EMBED = 32
    """Size of the embedding of each time."""
    LONGEST_PERIOD = 1e4

    def __init__(self, actions: int, condition: int, hidden: list[int], times: int = 1):
        super().__init__(*mlp([actions + condition + times * self.EMBED, *hidden, actions], nn.Mish))

    def forward(self, noisy: Tensor, condition: Tensor, *times: Tensor) -> Tensor:  # type: ignore[override]
        """Return the output (B, N) for noisy actions (B, N), a condition (B, F) and one or more times (B,)."""
        half = self.EMBED // 2
        frequency = torch.exp(-math.log(self.LONGEST_PERIOD) / half * torch.arange(half, device=noisy.device))
        phases = [time[:, None].float() * frequency for time in times]
        embedded = [wave for phase in phases for wave in (phase.sin(), phase.cos())]
        return super().forward(torch.cat([noisy, condition, *embedded], -1))


class ChunkPolicy(EncodingPolicy):
    """Policy that denoises action chunks in `sample_steps` steps."""

    inpaints = traceable = True

    def __init__(self, size: Size, config: Any):
        super().__init__()
        self.size, self.config = size, config
        self.horizon, self.execute = config.horizon, config.execute
        self.normalizer = Normalizer(size.observation)
        self.encoder = self.make_encoder()
        hidden = [config.hidden] * config.layers
        self.denoiser = Denoiser(config.horizon * size.action, self.encoder.size, hidden)
        self.guess = nn.Linear(self.encoder.size, config.horizon * size.action) if config.regression else None

    def make_encoder(self) -> Any:
        """Return an encoder of observations with fresh weights."""
        return self.config.encoder.build(self.size)

    def _predict(self, chunk: Tensor, time: Tensor, condition: Tensor, frozen: Denoiser | None = None) -> Tensor:
        """Return the output (B, horizon, A) of the network, or of its `frozen` copy, for noisy chunks at times (B,)."""
        return (frozen or self.denoiser)(chunk.flatten(1), condition, time).view_as(chunk)

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the training error (B,) for demonstrated chunks (B, horizon, A) in [-1, 1]."""
        condition = self.condition(self.encoder.augment(observation, rng))
        error = self._error(condition, chunk, rng)
        if self.guess is None:
            return error
        return error + self.config.regression * (self.guess(condition) - chunk.flatten(1)).square().mean(1)

    @abstractmethod
    def _error(self, condition: Tensor, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the error (B,) of the network's output at random noise levels."""

    def condition(self, observation: Observation) -> Tensor:
        """Return the features (B, F) of an observation; if it contains `FEATURES`, return those."""
        return observation[FEATURES] if FEATURES in observation else self.features(observation)

    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw initial noise (count, horizon, A)."""
        return normal((count, self.horizon, self.size.action), rng, self.normalizer.mean.device)

    @abstractmethod
    def base(self, observation: Observation, noise: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Map noise deterministically to chunks (B, horizon, A) in [-1, 1] that continue the prefix, if any."""

    @abstractmethod
    def one_step(self, observation: Observation, noise: Tensor) -> Tensor:
        """Return the network's output (B, horizon, A) for pure noise, with gradients and not clipped. If `prediction`
        is sample, the output is the clean chunk; after clipping it equals `base` with one sample step."""

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        return Chunk(self.base(observation, self.noise(len(observation["observation.state"]), rng), prefix))

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.infer(observation, rng).actions


def guidance_term(
    denoise: Callable[[Tensor], Tensor], noisy: Tensor, alpha: float, sigma: float, prefix: Prefix
) -> Tensor:
    """Return the guidance term (B, horizon, A) on the predicted clean chunk at one noise level.

    Pseudoinverse guidance (Song et al. 2023) as in Black et al. 2025, equations 2 to 4. With beta = `guidance`, their
    weight min(beta, (1 - t) / (t r^2)) on the velocity becomes min(beta sigma, (alpha^2 + sigma^2) / alpha) on the
    clean chunk for any noise schedule noisy = alpha clean + sigma noise.
    """
    weight = min(prefix.guidance * sigma, (alpha**2 + sigma**2) / max(alpha, 1e-6))
    with torch.enable_grad():
        noisy = noisy.detach().requires_grad_()
        clean = denoise(noisy)
        error = (prefix.actions - clean.detach().clamp(-1, 1)) * prefix.weights[..., None]
        return weight * torch.autograd.grad(clean, noisy, error)[0]


def keep_frozen(chunk: Tensor, prefix: Prefix | None) -> Tensor:
    """Clip a chunk to [-1, 1] and take its actions of weight 1 from the prefix."""
    chunk = chunk.clamp(-1, 1)
    return chunk if prefix is None else torch.where(prefix.weights[..., None] == 1, prefix.actions, chunk)
