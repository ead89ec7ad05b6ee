"""Chunks of actions for actor-critics: Li et al. 2025, "Reinforcement Learning with Action Chunking" (2507.07969).

The actor gives h actions at once, and the critics evaluate all h, so the h-step return needs no off-policy correction::

    y = sum_{k < h} discount^k r_k + discount^h Qbar(s_h, chunk')
"""

from typing import Any

import torch
from torch import Tensor

from robot_rl.data.replay import Batch


class ActionQueue:
    """Chunks being executed, one per environment. An environment takes a new chunk after the last action of its own."""

    def __init__(self, horizon: int):
        self.horizon = horizon
        self.chunks: Tensor | None = None
        """Chunks (n, horizon, A)."""
        self.used = torch.zeros(0, dtype=torch.long)
        """Actions already executed (n,)."""
        self.length = self.used
        """Actions to execute (n,)."""

    def due(self, rows: int) -> Tensor:
        """Return which of `rows` environments take a new chunk at this step, (n,) bool."""
        if len(self.used) != rows:
            self.chunks, self.used = None, torch.full((rows,), self.horizon)
            self.length = self.used.clone()
        return self.used >= self.length

    def step(self, chunks: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return this step's actions (n, A). Environments that are due take their chunk from `chunks` (n, horizon, A),
        of which they will execute `lengths` (n,) actions; None: all."""
        due = self.due(len(chunks))
        if lengths is not None:
            self.length = torch.where(due, lengths, self.length)
        fresh = due[:, None, None].to(chunks.device)
        self.chunks = chunks if self.chunks is None else torch.where(fresh, chunks, self.chunks)
        index = torch.where(due, 0, self.used)
        self.used = index + 1
        return self.chunks[torch.arange(len(index)), index]

    def reset(self, ids: Tensor | None = None) -> None:
        """Drop the chunks of environments `ids`, or of all."""
        self.used[slice(None) if ids is None else ids.cpu()] = self.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"chunks": self.chunks, "used": self.used, "length": self.length}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """Restore the result of `state_dict`; chunks are moved to `device`."""
        chunks = state["chunks"]
        self.chunks, self.used = None if chunks is None else chunks.to(device), state["used"].cpu()
        self.length = state["length"].cpu()


def flatten_chunks(batch: Batch, rng: torch.Generator) -> Batch:
    """Return the batch with its action chunks (B, h, A) as one row (B, h * A). Actions after the end of an episode are
    replaced by random ones, so that critics learn to ignore them."""
    action, valid = batch["action"], batch["valid"]
    random = 2 * torch.rand(action.shape, generator=rng, device=rng.device).to(action.device) - 1
    return batch | {"action": torch.where(valid[..., None], action, random).flatten(1)}
