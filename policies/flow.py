"""Flow-matching policy on action chunks (Lipman et al. 2023, "Flow Matching for Generative Modeling"; as pi0's action
head, Black et al. 2024, uses it): straight paths from noise to the demonstrated chunk, integrated by Euler's method.

    x_t = (1 - t) noise + t chunk        network(x_t, t, observation) -> chunk - noise, or the chunk
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from policies.base import Observation, Prefix, Size, normal
from policies.networks.chunks import ChunkConfig, ChunkPolicy, freeze, pull


@dataclass(frozen=True)
class FlowConfig(ChunkConfig):
    """A chunked flow policy; `sample_steps` are Euler steps."""

    prediction: Literal["velocity", "sample"] = "velocity"
    """The network's output: velocity (chunk - noise) or sample (the clean chunk, from which the velocity follows). The
    velocity's loss is the sample's with weight 1 / (1 - t)^2: it learns late times best, when a way has been chosen,
    and leaves the border between two ways blurred (one seed on testbed:fork-fast: success 0.64 with velocity, 0.96
    with sample, 0.72 with sample and that weight)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prediction not in ("velocity", "sample"):
            raise ValueError(f"prediction is {self.prediction!r}; choose velocity or sample")


Velocity = Callable[[Tensor, Tensor], Tensor]
"""The network: velocities (B, ...) of noisy actions (B, ...) at times (B,) in [0, 1]."""
TIME_SCALE = 100.0
"""Factor of times in [0, 1] before they are embedded."""


def velocity_error(velocity: Velocity, actions: Tensor, rng: torch.Generator, sample: bool = False) -> Tensor:
    """Return the squared error of velocities (B, ...) at random points between noise and actions (B, ...); with
    `sample` of the actions, which `velocity` then predicts."""
    noise = normal(actions.shape, rng, actions.device)
    time = torch.rand(len(actions), generator=rng, device=rng.device).to(actions.device)
    share = time.view(-1, *[1] * (actions.dim() - 1))
    target = actions if sample else actions - noise
    return (velocity((1 - share) * noise + share * actions, time) - target).square()


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

    def _output(self, condition: Tensor) -> Velocity:
        return lambda chunk, time: self._predict(chunk, TIME_SCALE * time, condition)

    def _velocity(self, condition: Tensor) -> Velocity:
        output = self._output(condition)
        if self.config.prediction == "velocity":
            return output
        # Euler's last step begins before time 1, so nothing is divided by 0.
        return lambda chunk, time: (output(chunk, time) - chunk) / (1 - time[:, None, None])

    def _error(self, condition: Tensor, chunk: Tensor, rng: torch.Generator) -> Tensor:
        error = velocity_error(self._output(condition), chunk, rng, self.config.prediction == "sample")
        return error.mean((1, 2))

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
