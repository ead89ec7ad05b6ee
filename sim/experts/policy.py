"""A task's scripted demonstrator as a policy, for evaluation and videos."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from policies.base import Chunk, Observation, Prefix
from sim.demonstrators import demonstrator


class ExpertPolicy:
    """Policy that acts as the demonstrator of an environment's task."""

    horizon = execute = 1

    def __init__(self, env: Any, skill: str = "CLUMSY", seed: int = 0):
        self.skill, self.seed, self.num_envs = skill, seed, env.num_envs
        self.expert = demonstrator(env, skill, seed)

    def for_env(self, env: Any) -> ExpertPolicy:
        """Return the same demonstrator for another environment of the task."""
        return ExpertPolicy(env, self.skill, self.seed)

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return chunks of one action (n, 1, A)."""
        return Chunk(self.expert.act({key: values.cpu() for key, values in observation.items()})[:, None])

    def reset(self, ids: Tensor | None = None) -> None:
        """Begin new episodes in environments `ids`; None: in all of them."""
        self.expert.reset(torch.arange(self.num_envs) if ids is None else ids.cpu())
