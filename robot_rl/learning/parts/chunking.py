"""Chunks of actions for actor-critics: Li et al. 2025, "Reinforcement Learning with Action Chunking" (2507.07969).

The actor gives h actions at once and the critics judge all h, so the h-step return needs no correction::

    y = sum_{k < h} discount^k r_k + discount^h Qbar(s_h, chunk')
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robot_rl.data.replay import Batch


class ActionQueue:
    """The chunk in execution of every environment. A new one is taken when the last action has been executed."""

    def __init__(self, horizon: int):
        self.horizon = horizon
        self.chunks: Tensor | None = None
        """(n, horizon, A)"""
        self.used = torch.zeros(0, dtype=torch.long)
        """(n,) actions executed"""
        self.length = self.used
        """(n,) actions to execute"""

    def due(self, rows: int) -> Tensor:
        """Return which of `rows` environments take a new chunk at this step (n,) bool."""
        if len(self.used) != rows:
            self.chunks, self.used = None, torch.full((rows,), self.horizon)
            self.length = self.used.clone()
        return self.used >= self.length

    def step(self, chunks: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return this step's actions (n, A); environments that are due take their chunk (n, horizon, A), and execute
        `lengths` (n,) actions of it, or all."""
        due = self.due(len(chunks))
        if lengths is not None:
            self.length = torch.where(due, lengths, self.length)
        fresh = due[:, None, None].to(chunks.device)
        self.chunks = chunks if self.chunks is None else torch.where(fresh, chunks, self.chunks)
        here = torch.where(due, 0, self.used)
        self.used = here + 1
        return self.chunks[torch.arange(len(here)), here]

    def reset(self, ids: Tensor | None = None) -> None:
        """Drop the chunks of environments `ids`, or of all."""
        self.used[slice(None) if ids is None else ids.cpu()] = self.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"chunks": self.chunks, "used": self.used, "length": self.length}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """Restore what `state_dict` returned; chunks go to `device`."""
        chunks = state["chunks"]
        self.chunks, self.used = None if chunks is None else chunks.to(device), state["used"].cpu()
        self.length = state["length"].cpu()


def flatten_chunks(batch: Batch, rng: torch.Generator) -> Batch:
    """Return the batch with its action chunks (B, h, A) as one row (B, h * A).

    Actions after an episode's end do not matter. They are drawn at random, so that critics learn to ignore them.
    """
    action, valid = batch["action"], batch["valid"]
    random = 2 * torch.rand(action.shape, generator=rng, device=rng.device).to(action.device) - 1
    return batch | {"action": torch.where(valid[..., None], action, random).flatten(1)}
