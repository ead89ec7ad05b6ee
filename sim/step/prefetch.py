"""Prefetched resets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sim.step.episodes import Episodes


class PrefetchedResets:
    """A second set of simulations, one episode ahead of the running simulations.

    A reset takes hundreds of small operations, for one episode as for a hundred; a copy takes a tenth of the time.
    Seed, number and instruction weights determine an episode, so a resume needs no saved state.
    """

    def __init__(self, ahead: Episodes):
        self.ahead = ahead
        self.ready = np.full(ahead.num_envs, -1)  # number of the prefetched episode per environment; -1: none
        self.observation: dict[str, Tensor] = {}  # first observations (n, D) of the prefetched episodes

    def begin(self, episodes: Episodes, ids: Tensor) -> dict[str, Tensor]:
        """Begin the next episodes of environments `ids` (k,); return their first observations (k, D)."""
        rows = ids.cpu().numpy()
        missing = (self.ready != episodes.sampler.next_episode) | (self.ahead.sampler.seed != episodes.sampler.seed)
        if missing[rows].any():
            self._prepare(episodes, missing.nonzero()[0])
        episodes.copy_from(ids, self.ahead)
        return {name: values.index_select(0, ids) for name, values in self.observation.items()}

    def forget(self) -> None:
        """Drop the prefetched episodes, because the distribution of episodes changed."""
        self.ready[:] = -1

    def _prepare(self, episodes: Episodes, rows: np.ndarray) -> None:
        ahead, ids = self.ahead, torch.as_tensor(rows, device=episodes.device)
        self.ready[rows] = -1  # valid state if Ctrl-C interrupts
        ahead.sampler.seed = episodes.sampler.seed
        ahead.sampler.instruction_weights = episodes.sampler.instruction_weights
        ahead.sampler.next_episode[rows] = episodes.sampler.next_episode[rows]
        first = ahead.begin(ids)
        if len(rows) < len(self.ready):
            first = {name: values.index_copy(0, ids, first[name]) for name, values in self.observation.items()}
        self.observation = first
        self.ready[rows] = episodes.sampler.next_episode[rows]
