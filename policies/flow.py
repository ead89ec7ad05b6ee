"""Flow-matching policy over action chunks (Lipman et al. 2023, "Flow Matching for Generative Modeling"), like pi0's
action head (Black et al. 2024): straight paths from noise to the demonstrated chunk, integrated by Euler steps.

    x_t = (1 - t) noise + t chunk        network(x_t, t, observation) -> chunk - noise, or the chunk
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from policies.base import Observation, Prefix, Size, normal, uniform
from policies.networks.chunks import ChunkConfig, ChunkPolicy, guidance_term, keep_frozen


@dataclass(frozen=True)
class FlowConfig(ChunkConfig):
    """Flow policy over action chunks; `sample_steps` is the number of Euler steps."""

    prediction: Literal["velocity", "sample"] = "velocity"
    """Output of the network: velocity (chunk - noise) or sample (the clean chunk). The velocity loss is the sample loss
    weighted by 1 / (1 - t)^2. The weight emphasizes late times, after a mode has been chosen, so modes are separated
    less sharply (success on testbed:fork-fast, one seed: velocity 0.64, sample 0.96, weighted sample 0.72)."""


Velocity = Callable[[Tensor, Tensor], Tensor]
"""Function that returns velocities (B, ...) of noisy actions (B, ...) at times (B,) in [0, 1]."""
TIME_SCALE = 100.0
"""Factor on times in [0, 1] before the sinusoidal embedding."""


def velocity_error(velocity: Velocity, actions: Tensor, rng: torch.Generator, sample: bool = False) -> Tensor:
    """Return the flow-matching squared error (B, ...) at random times for actions (B, ...); `sample` means that
    `velocity` predicts the actions."""
    noise = normal(actions.shape, rng, actions.device)
    time = uniform((len(actions),), rng, actions.device)
    share = time.view(-1, *[1] * (actions.dim() - 1))
    target = actions if sample else actions - noise
    return (velocity((1 - share) * noise + share * actions, time) - target).square()


def integrate(velocity: Velocity, noise: Tensor, steps: int) -> Tensor:
    """Integrate a velocity field from noise (B, ...) at time 0 to actions at time 1 in `steps` Euler steps."""
    x = noise
    for k in range(steps):
        x = x + velocity(x, x.new_full((len(x),), k / steps)) / steps
    return x


class FlowPolicy(ChunkPolicy):
    """Flow-matching policy over action chunks."""

    class_name, config_class = "flow", FlowConfig

    def __init__(self, size: Size, config: FlowConfig | None = None):
        super().__init__(size, config or FlowConfig())

    def _output(self, condition: Tensor) -> Velocity:
        return lambda chunk, time: self._predict(chunk, TIME_SCALE * time, condition)

    def _velocity(self, condition: Tensor) -> Velocity:
        output = self._output(condition)
        if self.config.prediction == "velocity":
            return output
        # The last Euler step starts before time 1, so this never divides by 0.
        return lambda chunk, time: (output(chunk, time) - chunk) / (1 - time[:, None, None])

    def _error(self, condition: Tensor, chunk: Tensor, rng: torch.Generator) -> Tensor:
        error = velocity_error(self._output(condition), chunk, rng, self.config.prediction == "sample")
        return error.mean((1, 2))

    def one_step(self, observation: Observation, noise: Tensor) -> Tensor:
        return self._output(self.condition(observation))(noise, noise.new_zeros(len(noise)))

    @torch.no_grad()
    def base(self, observation: Observation, noise: Tensor, prefix: Prefix | None = None) -> Tensor:
        velocity = self._velocity(self.condition(observation))

        def guided(chunk: Tensor, time: Tensor) -> Tensor:
            assert prefix is not None
            share = float(time[0])

            def denoise(noisy: Tensor) -> Tensor:
                return noisy + (1 - share) * velocity(noisy, time)

            return velocity(chunk, time) + guidance_term(denoise, chunk, share, 1 - share, prefix) / (1 - share)

        field = guided if prefix is not None and prefix.guidance else velocity
        return keep_frozen(integrate(field, noise, self.config.sample_steps), prefix)
