"""Diffusion policy on low-dimensional observations (Chi et al. 2023, "Diffusion Policy"; Ho et al. 2020; DDIM: Song
et al. 2020), with diffusers' schedulers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from policies.base import Normalizer, Observation, Policy, Size, mlp
from robot_rl.util.limits import Count, Whole


@dataclass(frozen=True)
class DiffusionConfig:
    """A chunked diffusion policy."""

    horizon: Count = 16
    """Actions predicted at once."""
    execute: Count = 8
    """Actions executed before the next prediction."""
    hidden: Count = 256
    """Width of the denoiser."""
    layers: Whole = 3
    """Hidden layers of the denoiser."""
    train_steps: Count = 100
    """Noise levels in training."""
    sample_steps: Count = 10
    """Denoising steps in use; must divide train_steps, or DDIM's step back does not match the time grid."""
    prediction: str = "sample"
    """What the network predicts: sample (the clean chunk) or epsilon (the noise). At the first denoising step epsilon
    is divided by almost nothing; a small network's error there ruins the chunk (measured on panda-lift: 0.95 success
    with sample, 0.01 with epsilon after the same 2,000 updates)."""

    def __post_init__(self) -> None:
        if self.prediction not in ("sample", "epsilon"):
            raise ValueError(f"prediction is {self.prediction!r}; choose sample or epsilon")
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon} predicts; lower execute")
        if min(self.train_steps, self.sample_steps) < 1:
            raise ValueError(f"train_steps {self.train_steps} and sample_steps {self.sample_steps} must be positive")
        if self.train_steps % self.sample_steps:
            raise ValueError(f"sample_steps {self.sample_steps} must divide train_steps {self.train_steps}")


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Here PyTorch's compiler cannot be imported, and diffusers, which marks its models for it, does without.

    It takes longer than all else that a robot's process imports, and is a third of the objects among which that process
    looks for garbage before it moves anything.
    """
    name = "torch._dynamo"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


class DiffusionPolicy(Policy):
    """An MLP denoiser of action chunks, conditioned on the observation and the noise level."""

    def __init__(self, size: Size, config: DiffusionConfig | None = None):
        super().__init__()
        with _without_compiler():
            from diffusers.schedulers.scheduling_ddim import DDIMScheduler

        self.size, self.config = size, config or DiffusionConfig()
        c = self.config
        self.horizon, self.execute = c.horizon, c.execute
        self.normalizer = Normalizer(size.observation)
        self.embed = 32
        flat = c.horizon * size.action
        self.denoiser = mlp([flat + size.observation + self.embed] + [c.hidden] * c.layers + [flat], nn.Mish)
        self.scheduler: Any = DDIMScheduler(
            num_train_timesteps=c.train_steps,
            beta_schedule="squaredcos_cap_v2",
            prediction_type=c.prediction,
            timestep_spacing="trailing",
            clip_sample=True,
        )

    def _predict(self, chunk: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        half = self.embed // 2
        frequency = torch.exp(-math.log(1e4) / half * torch.arange(half, device=chunk.device))
        phase = time[:, None].float() * frequency
        x = torch.cat([chunk.flatten(1), condition, phase.sin(), phase.cos()], -1)
        return self.denoiser(x).view_as(chunk)

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Denoising loss per row (B,) for chunks (B, horizon, A) in [-1, 1]."""
        noise = torch.randn(chunk.shape, generator=rng)
        time = torch.randint(0, self.config.train_steps, (len(chunk),), generator=rng)
        noisy = self.scheduler.add_noise(chunk, noise, time)
        target = noise if self.config.prediction == "epsilon" else chunk
        prediction = self._predict(noisy, time, self.normalizer(observation["observation.state"]))
        return (prediction - target).square().mean((1, 2))

    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Initial noise (count, horizon, A)."""
        return torch.randn(count, self.horizon, self.size.action, generator=rng)

    @torch.no_grad()
    def base(self, observation: Observation, noise: Tensor) -> Tensor:
        """The deterministic map from noise to a chunk (B, horizon, A) in [-1, 1]: DDIM with eta = 0."""
        condition = self.normalizer(observation["observation.state"])
        self.scheduler.set_timesteps(self.config.sample_steps)
        chunk = noise
        for t in self.scheduler.timesteps:
            prediction = self._predict(chunk, t.expand(len(chunk)), condition)
            chunk = self.scheduler.step(prediction, t, chunk).prev_sample
        return chunk.clamp(-1, 1)

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        return self.base(observation, self.noise(len(observation["observation.state"]), rng))
