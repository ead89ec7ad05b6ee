"""Flow-matching policy on action chunks (Lipman et al. 2023, "Flow Matching for Generative Modeling"; as pi0's action
head, Black et al. 2024, uses it): straight paths from noise to the demonstrated chunk, integrated by Euler's method.

    x_t = (1 - t) noise + t chunk        network(x_t, t, observation) -> chunk - noise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import Observation, Prefix, Size, normal
from policies.chunks import ChunkConfig, ChunkPolicy, freeze, pull


@dataclass(frozen=True)
class FlowConfig(ChunkConfig):
    """A chunked flow policy; `sample_steps` are Euler steps."""


Velocity = Callable[[Tensor, Tensor], Tensor]
"""The network: velocities (B, ...) of noisy actions (B, ...) at times (B,) in [0, 1]."""
TIME_SCALE = 100.0
"""Factor of times in [0, 1] before they are embedded."""


def velocity_error(velocity: Velocity, actions: Tensor, rng: torch.Generator) -> Tensor:
    """Return the squared error of velocities (B, ...) at random points between noise and actions (B, ...)."""
    noise = normal(actions.shape, rng, actions.device)
    time = torch.rand(len(actions), generator=rng, device=rng.device).to(actions.device)
    share = time.view(-1, *[1] * (actions.dim() - 1))
    return (velocity((1 - share) * noise + share * actions, time) - (actions - noise)).square()


def integrate(velocity: Velocity, noise: Tensor, steps: int) -> Tensor:
    """Return where noise (B, ...) flows to, by Euler steps."""
    x = noise
    for k in range(steps):
        x = x + velocity(x, x.new_full((len(x),), k / steps)) / steps
    return x


class FlowPolicy(ChunkPolicy):
    """Integrate noise along a learned velocity field."""

    class_name, config_class = "flow", FlowConfig

    def __init__(self, size: Size, config: FlowConfig | None = None):
        super().__init__(size, config or FlowConfig())

    def _velocity(self, condition: Tensor) -> Velocity:
        return lambda chunk, time: self._predict(chunk, TIME_SCALE * time, condition)

    def loss(self, observation: Observation, chunk: Tensor, rng: torch.Generator) -> Tensor:
        """Return the velocity error per row (B,) for chunks (B, horizon, A) in [-1, 1]."""
        condition = self.condition(self.encoder.augment(observation, rng))
        return velocity_error(self._velocity(condition), chunk, rng).mean((1, 2))

    def one_step(self, observation: Observation, noise: Tensor) -> Tensor:
        return self._output(self.condition(observation))(noise, noise.new_zeros(len(noise)))

    @torch.no_grad()
    def base(self, observation: Observation, noise: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Integrate the velocity field from noise in `sample_steps` Euler steps."""
        velocity = self._velocity(self.condition(observation))

        def guided(chunk: Tensor, time: Tensor) -> Tensor:
            assert prefix is not None
            share = float(time[0])

            def denoise(noisy: Tensor) -> Tensor:
                return noisy + (1 - share) * velocity(noisy, time)

            return velocity(chunk, time) + pull(denoise, chunk, share, 1 - share, prefix) / (1 - share)

        pulled = prefix is not None and bool(prefix.guidance)
        return freeze(integrate(guided if pulled else velocity, noise, self.config.sample_steps), prefix)
