"""Denoising chain of a diffusion policy as Gaussian transitions: stochastic DDIM (Song et al. 2020, equation 12).

    x' = mean(x, k, s) + std_k noise        std_k = max(eta sqrt((1 - p) / (1 - q) (1 - q / p)), min_std)

q and p are the signal's shares of the variance before and after step k. With eta = min_std = 0 the chain equals the
policy's deterministic sampler.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.base import Observation, normal
from policies.diffusion import DiffusionPolicy


class Chain:
    """Transitions of the denoising steps after `frozen_steps`."""

    def __init__(self, policy: DiffusionPolicy, eta: float, min_std: float):
        """`eta` is the share of DDPM's noise, `min_std` the smallest standard deviation of a transition."""
        self.policy = policy
        scheduler, count, device = policy.scheduler, policy.config.sample_steps, policy.normalizer.mean.device
        self.times: Tensor = torch.tensor(policy.times, device=device)
        """(sample_steps,)"""
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
        """(K,) standard deviations of the trained transitions"""

    def mean(self, noisy: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Return means (B, horizon, A) of the transitions from noisy chunks at denoising step `step`, or steps (B,)."""
        time = self.times[step].expand(len(noisy))
        frozen = self.policy.frozen if isinstance(step, int) and step < self.first else None
        output = self.policy._predict(noisy, time, condition, frozen)
        signal, share, clean, direction = (
            x[step].view(-1, 1, 1) for x in (self._signal, self._noise, self._clean, self._direction)
        )
        if self.policy.config.prediction == "sample":
            chunk, noise = output, (noisy - signal * output) / share
        else:
            chunk, noise = (noisy - share * output) / signal, output
        return clean * chunk.clamp(-1, 1) + direction * noise

    @torch.no_grad()
    def sample(self, observation: Observation, noise: Tensor, rng: torch.Generator) -> Tensor:
        """Return chains (B, K + 1, horizon, A) from noise (B, horizon, A); the last element is not clipped."""
        condition, chunk = self.policy.condition(observation), noise
        links = [chunk]
        for step in range(len(self.times)):
            drawn = normal(chunk.shape, rng, chunk.device)
            chunk = self.mean(chunk, step, condition) + self._every_std[step] * drawn
            links.append(chunk)
        return torch.stack(links[self.first :], 1)
