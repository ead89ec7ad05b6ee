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
    """Standard deviation of random outputs u during warm-up; None: u is uniform in [-1, 1]."""
    warmup_epsilon: Fraction | None = None
    """Probability of a uniform random action during warm-up; the other actions are the policy's. None: all actions of
    the warm-up are random."""
    noise_memory: Fraction = 0.9
    """Correlation of the noise between steps (Ornstein-Uhlenbeck process, Lillicrap et al. 2016).

    White noise averages out before it moves an arm away from a pose in which the arm's base policy stands still.
    """


class Noise:
    """Unit Gaussian noise per action dimension, with correlation `memory` between steps."""

    def __init__(self, memory: float, device: torch.device):
        self.memory, self.fresh, self.device = memory, (1 - memory**2) ** 0.5, device
        self.value: Tensor | None = None
        """(n, A) latest noise."""

    def step(self, rows: int, actions: int, rng: torch.Generator) -> Tensor:
        """Advance one step; return the noise (n, A) of n = `rows` environments and A = `actions` dimensions."""
        if self.value is None or len(self.value) != rows:
            self.value = torch.zeros(rows, actions, device=self.device)
        self.value = self.memory * self.value + self.fresh * normal((rows, actions), rng, self.device)
        return self.value


def explored(
    config: ExplorationConfig, phase: LearningPhase, act: Callable[[], Tensor], noise: Tensor, rng: torch.Generator
) -> Tensor:
    """Return actions (n, A) in [-1, 1]: those of `act`, or random ones in warm-up. `noise` (n, A) is unit Gaussian."""

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
