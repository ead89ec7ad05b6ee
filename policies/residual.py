"""A frozen chunked policy plus a learned correction at every step (Ankile et al. 2025, ResFiT)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from policies.base import ChunkRunner, Normalizer, Observation, Policy
from policies.diffusion import DiffusionPolicy
from policies.gaussian import GaussianActor, GaussianConfig
from robot_rl.util.limits import NonNegative


@dataclass(frozen=True)
class ResidualConfig:
    """A correction of a base policy."""

    scale: NonNegative = 0.5
    """Largest correction, in units of the action range [-1, 1]; 0 is exactly the base."""
    actor: GaussianConfig = field(default_factory=lambda: GaussianConfig(std=0.1, zero_init=True))


class ResidualPolicy(Policy):
    """Action = clip(base + scale * actor(observation, base), -1, 1).

    The base is asked once per chunk; the actor acts every step, so the policy's own horizon is 1. `last_base` holds
    the base actions of the latest call, which learners store beside the transition.
    """

    horizon = execute = 1

    def __init__(self, base: DiffusionPolicy, config: ResidualConfig | None = None):
        super().__init__()
        self.config = config or ResidualConfig()
        self.base = base.requires_grad_(False).eval()
        self.size = base.size
        self.normalizer = Normalizer(base.size.observation)
        self.normalizer.load_state_dict(base.normalizer.state_dict())
        self.actor = GaussianActor(base.size.observation + base.size.action, base.size.action, self.config.actor)
        self.explore = False
        """Sample corrections instead of taking their mean."""
        self.runner: ChunkRunner | None = None
        self.last_base = torch.empty(0)

    def features(self, state: Tensor, base: Tensor) -> Tensor:
        """What the actor reads: normalized observation and base action."""
        return torch.cat([self.normalizer(state), base], -1)

    def combine(self, base: Tensor, correction: Tensor) -> Tensor:
        return (base + self.config.scale * correction).clamp(-1, 1)

    def reset(self, ids: Tensor | None = None) -> None:
        if self.runner is not None:
            self.runner.reset(ids)

    def base_action(self, observation: Observation, rng: torch.Generator) -> Tensor:
        """The base's next action for every environment; advances its chunks."""
        count = len(observation["observation.state"])
        if self.runner is None or len(self.runner.used) != count:
            self.runner = ChunkRunner(self.base, count)
        return self.runner.act(observation, rng)

    @torch.no_grad()
    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        self.last_base = self.base_action(observation, rng)
        return self._corrected(observation["observation.state"], self.last_base, rng)

    @torch.no_grad()
    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        assert self.runner is not None
        base = self.runner.peek(observation, rows, rng)
        return self._corrected(observation["observation.state"][rows], base[rows], rng)

    def _corrected(self, state: Tensor, base: Tensor, rng: torch.Generator) -> Tensor:
        """Chunks of one action for observations (B, D) and the base's actions (B, A)."""
        features = self.features(state, base)
        correction = self.actor.sample(features, rng)[0] if self.explore else self.actor.mean(features)
        return self.combine(base, correction)[:, None]
