"""The protocol between loops and learners: act, declare the replay's columns, and update from batches."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from policies.base import Observation, Policy
from robot_rl.data.replay import Batch, Column, Sampling


class LearningPhase(StrEnum):
    """Stage of a run: how it acts, and which networks learn."""

    WARMUP = "warmup"
    """Random actions; only critics learn."""
    LEARN = "learn"
    """The policy's own actions; everything learns."""


class Agent(Protocol):
    """An off-policy learner. Everything it holds and returns lives on `device`."""

    @property
    def policy(self) -> Policy:
        """Return the acting policy."""

    @property
    def device(self) -> torch.device:
        """Return the device of the networks."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """Return the replay's columns besides reward, starts, last and terminated."""

    @property
    def sampling(self) -> Sampling:
        """Return how the replay is sampled."""

    def act(self, observation: Observation, rng: torch.Generator, phase: LearningPhase) -> tuple[Tensor, Observation]:
        """Return exploring actions (n, A) in [-1, 1], and the columns besides the observation that the replay keeps."""

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        """Return these columns at final observations, valid in rows (n,), without advancing the policy.

        `rows` is bool, on the CPU.
        """

    def annotate(self, observation: Observation, action: Tensor, reward: Tensor, rng: torch.Generator) -> Observation:
        """Return these columns along one recorded episode of T + 1 observations, T actions and T rewards."""

    def reset(self, ids: Tensor | None = None) -> None:
        """Forget environments `ids` (on the CPU), or all: their next step starts an episode."""

    def update(self, batch: Batch, phase: LearningPhase) -> dict[str, Tensor]:
        """Learn from one batch; return metrics."""

    def finish(self) -> None:
        """Set `policy` to the one to deploy."""

    def value_state(self) -> dict[str, Tensor]:
        """Return the weights of the value functions, for continued training."""

    def memory(self) -> dict[str, Any]:
        """Return the per-environment state of acting, for a checkpoint."""

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        """Restore what `memory` returned; `observation` is the current one."""

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizers and counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
