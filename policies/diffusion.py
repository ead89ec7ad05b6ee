"""Diffusion policy over action chunks (Chi et al. 2023, "Diffusion Policy"; Ho et al. 2020; DDIM: Song
et al. 2020), with diffusers' schedulers."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from policies.base import Observation, Prefix, Size, normal
from policies.networks.chunks import ChunkConfig, ChunkPolicy, Denoiser, guidance_term, keep_frozen
from robot_rl.util.limits import Interval, NonNegativeInt
from robot_rl.util.ranks import drawn


@dataclass(frozen=True)
class DiffusionConfig(ChunkConfig):
    """Diffusion policy over action chunks. `sample_steps` must divide `train_steps`, because of DDIM's time grid."""

    train_steps: Annotated[int, Interval(ge=1, le=10_000)] = 100
    """Number of noise levels in training."""
    prediction: Literal["sample", "epsilon"] = "sample"
    """Output of the network: sample (the clean chunk) or epsilon (the noise). The first denoising step divides epsilon
    by almost 0, which amplifies errors (success on panda-lift: 0.95 with sample, 0.01 with epsilon)."""
    frozen_steps: NonNegativeInt = 0
    """Number of first denoising steps that use a frozen copy of the network; recipe dppo trains the other steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frozen_steps >= self.sample_steps:
            raise ValueError(f"frozen_steps is {self.frozen_steps} of {self.sample_steps} sample_steps; lower it")
        if self.train_steps % self.sample_steps:
            raise ValueError(f"sample_steps {self.sample_steps} must divide train_steps {self.train_steps}")


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Hide `torch._dynamo` from the import of diffusers. Importing `torch._dynamo` is slow, and a third of all objects
    that the garbage collector then scans belong to it."""
    name = "torch._dynamo"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


class DiffusionPolicy(ChunkPolicy):
    """Denoise action chunks, conditioned on the observation and the noise level."""

    class_name, config_class = "diffusion", DiffusionConfig

    def __init__(self, size: Size, config: DiffusionConfig | None = None):
        c = config or DiffusionConfig()
        super().__init__(size, c)
        with _without_compiler():
            from diffusers.schedulers.scheduling_ddim import DDIMScheduler

        self.scheduler: Any = DDIMScheduler(
            num_train_timesteps=c.train_steps,
            beta_schedule="squaredcos_cap_v2",
            prediction_type=c.prediction,
            timestep_spacing="trailing",
            clip_sample=True,
        )
        self.scheduler.set_timesteps(c.sample_steps)
        self.times: list[int] = self.scheduler.timesteps.tolist()
        """Noise levels of the denoising steps, in descending order."""
        self.frozen: Denoiser | None = None
        if c.frozen_steps:
            hidden = [c.hidden] * c.layers
            self.frozen = Denoiser(c.horizon * size.action, self.encoder.size, hidden).requires_grad_(False)

    def freeze_first(self) -> None:
        """Copy the network's current weights to the frozen copy, which the first denoising steps use."""
        if self.frozen is not None:
            self.frozen.load_state_dict(self.denoiser.state_dict())

    def _error(self, condition: Tensor, chunk: Tensor, rng: torch.Generator) -> Tensor:
        noise = normal(chunk.shape, rng, chunk.device)
        time = drawn(partial(torch.randint, self.config.train_steps), (len(chunk),), rng, chunk.device)
        noisy = self.scheduler.add_noise(chunk, noise, time)
        target = noise if self.config.prediction == "epsilon" else chunk
        prediction = self._predict(noisy, time, condition)
        return (prediction - target).square().mean((1, 2))

    def one_step(self, observation: Observation, noise: Tensor) -> Tensor:
        time = torch.full((len(noise),), self.config.train_steps - 1, device=noise.device)
        return self._predict(noise, time, self.condition(observation))

    @torch.no_grad()
    def base(self, observation: Observation, noise: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Denoise chunks by DDIM with eta = 0, which adds no noise (Song et al. 2020)."""
        condition = self.condition(observation)
        chunk = noise
        for k, t in enumerate(self.times):
            time = torch.full((len(chunk),), t, device=chunk.device)
            frozen = self.frozen if k < self.config.frozen_steps else None
            prediction = self._predict(chunk, time, condition, frozen)
            if prefix is not None and prefix.guidance:
                signal = float(self.scheduler.alphas_cumprod[t])
                prediction = prediction + self._guide(chunk, time, condition, frozen, signal, prefix)
            chunk = self.scheduler.step(prediction, t, chunk).prev_sample
        return keep_frozen(chunk, prefix)

    def _guide(
        self, chunk: Tensor, time: Tensor, condition: Tensor, frozen: Denoiser | None, signal: float, prefix: Prefix
    ) -> Tensor:
        """Return the guidance term to add to a prediction; `signal` is the clean chunk's share of the variance."""
        alpha, sigma = math.sqrt(signal), math.sqrt(1 - signal)
        if self.config.prediction == "sample":
            return guidance_term(lambda x: self._predict(x, time, condition, frozen), chunk, alpha, sigma, prefix)

        def denoise(noisy: Tensor) -> Tensor:
            return (noisy - sigma * self._predict(noisy, time, condition, frozen)) / alpha

        return -alpha / sigma * guidance_term(denoise, chunk, alpha, sigma, prefix)


class Chain:
    """Denoising steps after `frozen_steps` as Gaussian transitions by stochastic DDIM (Song et al. 2020, equation 12).

        x' = mean(x, k, s) + std_k noise        std_k = max(eta sqrt((1 - p) / (1 - q) (1 - q / p)), min_std)

    q and p are the clean chunk's shares of the variance before and after step k, s is the observation. With
    eta = min_std = 0 the chain equals the policy's deterministic sampler.
    """

    def __init__(self, policy: DiffusionPolicy, eta: float, min_std: float):
        """`eta` is the share of DDPM's noise, `min_std` the smallest standard deviation of a transition."""
        self.policy = policy
        scheduler, count, device = policy.scheduler, policy.config.sample_steps, policy.normalizer.mean.device
        self.times: Tensor = torch.tensor(policy.times, device=device)
        """(sample_steps,) noise levels of the denoising steps, in descending order"""
        later = self.times - policy.config.train_steps // count
        signal = scheduler.alphas_cumprod.to(device)
        before = signal[self.times]
        after = torch.where(later < 0, scheduler.final_alpha_cumprod.to(device), signal[later.clamp_min(0)])
        drawn = eta * ((1 - after) / (1 - before) * (1 - before / after)).sqrt()
        self._signal, self._noise = before.sqrt(), (1 - before).sqrt()
        self._clean, self._direction = after.sqrt(), (1 - after - drawn.square()).clamp_min(0).sqrt()
        self.first = policy.config.frozen_steps
        self._every_std = drawn.clamp_min(min_std)
        self.std = self._every_std[self.first :]
        """(K,) standard deviations of the K trained transitions"""

    def mean(self, noisy: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Return means (B, horizon, A) of the transitions from noisy chunks (B, horizon, A); `step` is the denoising
        step of all chunks, or (B,)."""
        time = self.times[step].expand(len(noisy))
        frozen = self.policy.frozen if isinstance(step, int) and step < self.first else None
        output = self.policy._predict(noisy, time, condition, frozen)
        factors = (self._signal, self._noise, self._clean, self._direction)
        signal, share, clean, direction = (x[step].view(-1, 1, 1) for x in factors)
        if self.policy.config.prediction == "sample":
            chunk, noise = output, (noisy - signal * output) / share
        else:
            chunk, noise = (noisy - share * output) / signal, output
        return clean * chunk.clamp(-1, 1) + direction * noise

    @torch.no_grad()
    def sample(self, observation: Observation, noise: Tensor, rng: torch.Generator) -> Tensor:
        """Return chains (B, K + 1, horizon, A) from noise (B, horizon, A): the chunks before and after each of the K
        trained transitions. The last chunk is not clipped."""
        condition, chunk = self.policy.condition(observation), noise
        links = [chunk]
        for step in range(len(self.times)):
            drawn = normal(chunk.shape, rng, chunk.device)
            chunk = self.mean(chunk, step, condition) + self._every_std[step] * drawn
            links.append(chunk)
        return torch.stack(links[self.first :], 1)
