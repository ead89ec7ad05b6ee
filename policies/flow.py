"""Flow-matching policy on action chunks (Lipman et al. 2023, "Flow Matching for Generative Modeling"; as pi0's action
head, Black et al. 2024, uses it): straight paths from noise to the demonstrated chunk, integrated by Euler's method.

    x_t = (1 - t) noise + t chunk        network(x_t, t, observation) -> chunk - noise
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import Observation, Prefix, Size, normal
from policies.chunks import ChunkConfig, ChunkPolicy, freeze, pull


@dataclass(frozen=True)
class FlowConfig(ChunkConfig):
    """A chunked flow policy; `sample_steps` are Euler steps."""


class FlowPolicy(ChunkPolicy):
    """Integrate noise along a learned velocity field."""

    class_name, config_class = "flow", FlowConfig
    TIME_SCALE = 100.0
    """Factor of times in [0, 1] before they are embedded."""

    def __init__(self, size: Size, config: FlowConfig | None = None):
        super().__init__(size, config or FlowConfig())

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the velocity error per row (B,) for chunks (B, horizon, A) in [-1, 1]."""
        noise = normal(chunk.shape, rng, chunk.device)
        time = torch.rand(len(chunk), generator=rng, device=rng.device).to(chunk.device)
        share = time[:, None, None]
        between = (1 - share) * noise + share * chunk
        condition = self.condition(self.encoder.augment(observation, rng))
        velocity = self._predict(between, self.TIME_SCALE * time, condition)
        return (velocity - (chunk - noise)).square().mean((1, 2))

    @torch.no_grad()
    def base(self, observation: Observation, noise: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Integrate the velocity field from noise in `sample_steps` Euler steps."""
        condition, chunk, steps = self.condition(observation), noise, self.config.sample_steps
        for k in range(steps):
            time = torch.full((len(chunk),), self.TIME_SCALE * k / steps, device=chunk.device)
            velocity = self._predict(chunk, time, condition)
            if prefix is not None and prefix.guidance:
                velocity = velocity + self._guide(chunk, time, condition, k / steps, prefix)
            chunk = chunk + velocity / steps
        return freeze(chunk, prefix)

    def _guide(self, chunk: Tensor, time: Tensor, condition: Tensor, share: float, prefix: Prefix) -> Tensor:
        """Return what guidance adds to the velocity at time `share` in [0, 1)."""

        def denoise(noisy: Tensor) -> Tensor:
            return noisy + (1 - share) * self._predict(noisy, time, condition)

        return pull(denoise, chunk, share, 1 - share, prefix) / (1 - share)
