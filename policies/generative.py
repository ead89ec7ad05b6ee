"""Generative actors for actor-critics: maps from noise z and features to u, an action or a chunk.

one-step    u = network(z, features)                              the actor of FQL (Park et al. 2025)
mean-flow   u = z - network(z, 0, 1, features), average velocity  (Geng et al. 2025; OFQL, Nguyen et al. 2025)
flow        integral of the velocity by Euler steps               (Lipman et al. 2023; guided: CFGRL, Frans et al. 2025)
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from policies.actor import ActorPolicy
from policies.base import Actor, Normalizer, Observation, Size, mlp, normal
from policies.flow import TIME_SCALE, Velocity, integrate, velocity_error
from policies.networks.chunks import Denoiser
from policies.networks.encoder import Encoder, EncoderConfig
from robot_rl.util.limits import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class GenerativeConfig:
    """A generative actor."""

    kind: Literal["one-step", "mean-flow", "flow"] = "flow"
    """Map from noise to actions: evaluate a network once (one-step), evaluate an average velocity once (mean-flow), or
    integrate a velocity (flow)."""
    hidden: tuple[PositiveInt, ...] = (256, 256)
    """Widths of the hidden layers."""
    horizon: PositiveInt = 1
    """Number of actions in a chunk."""
    layer_norm: bool = False
    """LayerNorm before each activation (only one-step)."""
    sample_steps: PositiveInt = 10
    """Number of Euler steps (only flow)."""
    guided: bool = False
    """Condition on whether the action is better than average, and apply `guidance` (only flow)."""
    guidance: NonNegativeFloat = 1.0
    """Guidance weight w (CFGRL): 0 clones all data, 1 clones better actions, above 1 extrapolates beyond them."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)


class GenerativeActor(Actor):
    """Map features (B, F) and noise (B, A) to actions."""

    std = None
    starts_at_zero = False

    def __init__(self, features: int, actions: int, config: GenerativeConfig):
        super().__init__()
        self.config, self.actions = config, actions

    @abstractmethod
    def decode(self, features: Tensor, z: Tensor) -> Tensor:
        """Return u (B, A), not clipped, for noise z (B, A)."""

    def sample(self, features: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return u (B, A), not clipped, and 0 (B,) in place of the unknown log-probability."""
        z = normal((len(features), self.actions), rng, features.device)
        return self.decode(features, z), features.new_zeros(len(features))

    def mean(self, features: Tensor) -> Tensor:
        """Return u (B, A) for zero noise."""
        return self.decode(features, features.new_zeros(len(features), self.actions)).clamp(-1, 1)


class OneStepActor(GenerativeActor):
    """MLP of noise and features."""

    def __init__(self, features: int, actions: int, config: GenerativeConfig):
        super().__init__(features, actions, config)
        self.net = mlp([features + actions, *config.hidden, actions], nn.GELU, norm=config.layer_norm)

    def decode(self, features: Tensor, z: Tensor) -> Tensor:
        return self.net(torch.cat([features, z], -1))


class MeanFlowActor(GenerativeActor):
    """Average velocity over times [r, t] along the path a_t = (1 - t) action + t noise."""

    SAME: float = 0.5
    """Share of training samples with r = t, where the average velocity equals the velocity."""
    LOGIT_MEAN, LOGIT_STD = -0.4, 1.0
    # Times have no TIME_SCALE: the loss contains du/dt, which would grow with it.

    def __init__(self, features: int, actions: int, config: GenerativeConfig):
        super().__init__(features, actions, config)
        self.net = Denoiser(actions, features, list(config.hidden), times=2)

    def velocity(self, noisy: Tensor, r: Tensor, t: Tensor, features: Tensor) -> Tensor:
        """Return average velocities (B, A) of noisy actions (B, A) over times [r, t]; r and t are (B,) each."""
        return self.net(noisy, features, t, t - r)

    def decode(self, features: Tensor, z: Tensor) -> Tensor:
        one = features.new_ones(len(features))
        return z - self.velocity(z, torch.zeros_like(one), one, features)

    def times(self, count: int, rng: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw times r <= t, (count,) each, from a logit-normal distribution."""
        pair = (self.LOGIT_MEAN + self.LOGIT_STD * normal((2, count), rng, device)).sigmoid()
        same = torch.rand(count, generator=rng, device=rng.device).to(device) < self.SAME
        t = pair.amax(0)
        return torch.where(same, t, pair.amin(0)), t

    def loss(self, features: Tensor, actions: Tensor, rng: torch.Generator) -> Tensor:
        """Return squared errors (B, A) of the MeanFlow identity u = v - (t - r) du/dt (Geng et al. 2025, equation
        6)."""
        z = normal(actions.shape, rng, actions.device)
        r, t = self.times(len(actions), rng, actions.device)
        v = z - actions
        noisy = (1 - t)[:, None] * actions + t[:, None] * z

        def average(noisy: Tensor, r: Tensor, t: Tensor) -> Tensor:
            return self.velocity(noisy, r, t, features)

        tangents = (v, torch.zeros_like(r), torch.ones_like(t))
        u, change = torch.func.jvp(average, (noisy, r, t), tangents)  # type: ignore[misc]
        return (u - (v - (t - r)[:, None] * change).detach()).square()


class FlowActor(GenerativeActor):
    """Velocity field; if `guided`, one network models the fields of better actions and of all actions."""

    def __init__(self, features: int, actions: int, config: GenerativeConfig):
        super().__init__(features, actions, config)
        self.net = Denoiser(actions, features + 2 * config.guided, list(config.hidden))

    def velocity(self, features: Tensor, better: Tensor | None = None) -> Velocity:
        """Return the velocity field; `better` (B,) selects the field of better actions (1) or of all actions (0)."""
        if better is not None:
            features = torch.cat([features, better[:, None], 1 - better[:, None]], -1)
        return lambda noisy, time: self.net(noisy, features, TIME_SCALE * time)

    def decode(self, features: Tensor, z: Tensor) -> Tensor:
        c = self.config
        if not c.guided:
            return integrate(self.velocity(features), z, c.sample_steps)
        no = features.new_zeros(len(features))
        every, better = self.velocity(features, no), self.velocity(features, no + 1)

        def guided(noisy: Tensor, time: Tensor) -> Tensor:
            base = every(noisy, time)
            return base + c.guidance * (better(noisy, time) - base)

        velocity: Velocity = {0.0: every, 1.0: better}.get(c.guidance, guided)
        return integrate(velocity, z, c.sample_steps)

    def loss(self, features: Tensor, actions: Tensor, rng: torch.Generator, better: Tensor | None = None) -> Tensor:
        """Return the flow-matching errors (B, A) for actions (B, A); see `velocity` for `better`."""
        return velocity_error(self.velocity(features, better), actions, rng)


ACTORS: dict[str, type[GenerativeActor]] = {"one-step": OneStepActor, "mean-flow": MeanFlowActor, "flow": FlowActor}


class GenerativePolicy(ActorPolicy):
    """Policy with a generative actor; it always samples because its most likely action is unknown."""

    class_name, config_class = "generative", GenerativeConfig
    actor: GenerativeActor

    def __init__(self, size: Size, config: GenerativeConfig | None = None):
        super().__init__()
        self.size, self.config = size, config or GenerativeConfig()
        self.horizon = self.execute = self.config.horizon
        self.normalizer = Normalizer(size.observation, math.inf)
        self.encoder = Encoder(size, self.config.encoder)
        self.actor = ACTORS[self.config.kind](self.encoder.size, self.horizon * size.action, self.config)
        self.explore = True

    def transform(self, u: Tensor, observation: Observation) -> Tensor:
        return u.clamp(-1, 1)
