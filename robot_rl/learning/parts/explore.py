"""Exploration of a deterministic or untrained actor: correlated Gaussian noise, or uniform actions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from policies.base import normal
from robot_rl.learning.agent import LearningPhase
from robot_rl.util.limits import Fraction, NonNegativeFloat


@dataclass(frozen=True)
class ExplorationConfig:
    """Noise on the actor's output u in [-1, 1], before the action transform."""

    warmup_noise: NonNegativeFloat | None = 0.4
    """Standard deviation of random u during warm-up; None: uniform u."""
    warmup_epsilon: Fraction | None = None
    """Probability of a random action during warm-up, which otherwise uses the policy; None: always random."""
    noise_memory: Fraction = 0.9
    """Correlation of the noise between steps (Ornstein-Uhlenbeck process, Lillicrap et al. 2016).

    White noise averages out before it moves an arm away from a pose at which its base policy stands still.
    """


class Noise:
    """Unit Gaussian noise per action, with correlation `memory` between steps."""

    def __init__(self, memory: float, device: torch.device):
        self.memory, self.fresh, self.device = memory, (1 - memory**2) ** 0.5, device
        self.value: Tensor | None = None
        """Latest noise (n, A)."""

    def step(self, rows: int, actions: int, rng: torch.Generator) -> Tensor:
        """Advance one step; return the noise (n, A)."""
        if self.value is None or len(self.value) != rows:
            self.value = torch.zeros(rows, actions, device=self.device)
        self.value = self.memory * self.value + self.fresh * normal((rows, actions), rng, self.device)
        return self.value


def explored(
    config: ExplorationConfig, phase: LearningPhase, act: Callable[[], Tensor], noise: Tensor, rng: torch.Generator
) -> Tensor:
    """Return the actions (n, A) of `act`, or those of the warm-up, in [-1, 1]; `noise` (n, A) is unit Gaussian."""

    def uniform() -> Tensor:
        return 2 * torch.rand(noise.shape, generator=rng, device=rng.device).to(noise.device) - 1

    epsilon = config.warmup_epsilon if phase == LearningPhase.WARMUP else 0.0
    if epsilon is None:
        u = uniform() if config.warmup_noise is None else config.warmup_noise * noise
    else:
        u = act()
    if epsilon:
        random = torch.rand(len(noise), 1, generator=rng, device=rng.device).to(noise.device) < epsilon
        u = torch.where(random, uniform(), u)
    return u.clamp(-1, 1)
