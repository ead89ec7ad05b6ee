"""Chunks of actions for actor-critics: Li et al. 2025, "Reinforcement Learning with Action Chunking" (2507.07969).

The actor plans h actions at once, and the critics evaluate all h actions together, so the h-step return needs no
off-policy correction::

    y = sum_{k < h} discount^k r_k + discount^h Qbar(s_h, chunk')
"""

from typing import Any

import torch
from torch import Tensor

from robot_rl.data.replay import Batch


class ActionQueue:
    """Chunks being executed, one per environment. After a chunk's last action, its environment takes a new chunk."""

    def __init__(self, horizon: int):
        self.horizon = horizon
        self.chunks: Tensor | None = None
        """(n, horizon, A) chunks being executed."""
        self.used = torch.zeros(0, dtype=torch.long)
        """(n,) number of actions of each chunk that were already executed."""
        self.length = self.used
        """(n,) number of actions of each chunk to execute."""

    def due(self, rows: int) -> Tensor:
        """Return (n,) bool: which of the n = `rows` environments take a new chunk at this step."""
        if len(self.used) != rows:
            self.chunks, self.used = None, torch.full((rows,), self.horizon)
            self.length = self.used.clone()
        return self.used >= self.length

    def step(self, chunks: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return this step's actions (n, A). Environments that are `due` take a new chunk from `chunks`
        (n, horizon, A), of which they execute `lengths` (n,) actions; None: all actions."""
        due = self.due(len(chunks))
        if lengths is not None:
            self.length = torch.where(due, lengths, self.length)
        fresh = due[:, None, None].to(chunks.device)
        self.chunks = chunks if self.chunks is None else torch.where(fresh, chunks, self.chunks)
        index = torch.where(due, 0, self.used)
        self.used = index + 1
        return self.chunks[torch.arange(len(index)), index]

    def reset(self, ids: Tensor | None = None) -> None:
        """Drop the chunks of environments `ids`, or if None of all environments."""
        self.used[slice(None) if ids is None else ids.cpu()] = self.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"chunks": self.chunks, "used": self.used, "length": self.length}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """Restore the result of `state_dict`; chunks are moved to `device`."""
        chunks = state["chunks"]
        self.chunks, self.used = None if chunks is None else chunks.to(device), state["used"].cpu()
        self.length = state["length"].cpu()


def flatten_chunks(batch: Batch, rng: torch.Generator) -> Batch:
    """Return the batch with action chunks (B, h, A) flattened to (B, h * A). Random actions replace those after the end
    of an episode, so that critics learn to ignore them."""
    action, valid = batch["action"], batch["valid"]
    random = 2 * torch.rand(action.shape, generator=rng, device=rng.device).to(action.device) - 1
    return batch | {"action": torch.where(valid[..., None], action, random).flatten(1)}
