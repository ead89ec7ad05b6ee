"""A demonstrator that brings the tool to a target, from observations alone."""

from __future__ import annotations

import torch
from torch import Tensor

from robot_rl.interface.spec import VectorSpec

CLUMSY, STEADY = 0.3, 0.05
"""Standard deviation of the action noise, in units of the largest action."""


class ReachExpert:
    """Halve the distance to the target in every control period."""

    def __init__(self, observations: VectorSpec, actions: VectorSpec, num_envs: int, skill: float, seed: int = 0):
        self.offset, self.step, self.tremor = observations.slice("target_to_tool"), float(actions.high[0]), skill
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self, ids: Tensor) -> None:
        """Forget the episodes `ids`; there is nothing to forget."""

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Actions (n, 3) in [-1, 1] for observations (n, D)."""
        motion = 0.5 * observation["observation.state"][:, self.offset] / self.step
        motion = motion / motion.abs().amax(-1, keepdim=True).clamp_min(1)  # straight, also where it is far
        return (motion + self.tremor * torch.randn(motion.shape, generator=self.generator)).clamp(-1, 1)
