"""Interface between training loops and learners, which act, declare the replay's columns, and learn from batches."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from policies.base import Observation, Policy
from robot_rl.data.replay import Batch, Column, Sampling


class LearningPhase(StrEnum):
    """Phase of a training run, which decides how the agent acts and which networks learn."""

    WARMUP = "warmup"
    """Random actions; only critics learn."""
    LEARN = "learn"
    """The policy's own actions; all networks learn."""


class Agent(Protocol):
    """Off-policy learner. Its networks and all tensors that it returns are on `device`."""

    @property
    def policy(self) -> Policy:
        """Return the policy that acts in training."""

    @property
    def device(self) -> torch.device:
        """Return the device of the networks."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """Return the replay's columns by name, besides reward, starts, last and terminated."""

    @property
    def sampling(self) -> Sampling:
        """Return how the training loop samples batches from the replay."""

    def act(self, observation: Observation, rng: torch.Generator, phase: LearningPhase) -> tuple[Tensor, Observation]:
        """Return exploring actions (n, A) in [-1, 1], and what the replay stores besides the observation, by column."""

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Observation:
        """Return the replay's columns besides the observation at the episodes' final observations, without advancing
        the policy. Only the rows in the mask `rows` (n,), on the CPU, are valid."""

    def annotate(self, observation: Observation, action: Tensor, reward: Tensor, rng: torch.Generator) -> Observation:
        """Return the replay's columns besides the observation for a recorded episode of T + 1 observations, T actions
        and T rewards."""

    def reset(self, ids: Tensor | None = None) -> None:
        """Reset the state of acting in environments `ids`, a CPU tensor, or if None in all: their next step starts an
        episode."""

    def update(self, batch: Batch, phase: LearningPhase) -> dict[str, Tensor]:
        """Learn from one batch of the replay; return metrics by name."""

    def finish(self) -> None:
        """Set `policy` to the policy to deploy."""

    def value_state(self) -> dict[str, Tensor]:
        """Return the weights of the value functions, for continued training."""

    def memory(self) -> dict[str, Any]:
        """Return the state of acting in each environment, for a checkpoint."""

    def load_memory(self, memory: dict[str, Any], observation: Observation) -> None:
        """Restore the result of `memory`; `observation` is the current observation."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of networks, optimizers and counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""


def states_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of each part by name, for a checkpoint."""
    return {name: part.state_dict() for name, part in parts.items()}


def restore(parts: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Restore the state of each part from the result of `states_of`."""
    for name, part in parts.items():
        part.load_state_dict(states[name])
