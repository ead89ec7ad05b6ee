"""Prefetch resets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sim.step.episodes import Episodes


class PrefetchedResets:
    """A second set of simulations, one episode ahead of the running ones.

    A reset takes hundreds of small operations, for one episode or a hundred; a copy takes a tenth of the time. Episodes
    are determined by seed, number and the chances of instructions, so nothing needs to be saved for a resume.
    """

    def __init__(self, ahead: Episodes):
        self.ahead = ahead
        self.ready = np.full(ahead.num_envs, -1)
        """Number of the episode that is prefetched for each environment; -1: none."""
        self.observation: dict[str, Tensor] = {}
        """The first observations (n, D) of these."""

    def begin(self, episodes: Episodes, ids: Tensor) -> dict[str, Tensor]:
        """Begin the next episodes of environments `ids` (k,) and return their first observations (k, D)."""
        rows = ids.cpu().numpy()
        missing = (self.ready != episodes.sampler.next_episode) | (self.ahead.sampler.seed != episodes.sampler.seed)
        if missing[rows].any():
            self._prepare(episodes, missing.nonzero()[0])
        episodes.copy_from(ids, self.ahead)
        return {name: values.index_select(0, ids) for name, values in self.observation.items()}

    def forget(self) -> None:
        """Drop the episodes that are prefetched: the next ones are drawn otherwise."""
        self.ready[:] = -1

    def _prepare(self, episodes: Episodes, rows: np.ndarray) -> None:
        ahead, ids = self.ahead, torch.as_tensor(rows, device=episodes.device)
        self.ready[rows] = -1  # in case Ctrl-C interrupts
        ahead.sampler.seed = episodes.sampler.seed
        ahead.sampler.instruction_weights = episodes.sampler.instruction_weights
        ahead.sampler.next_episode[rows] = episodes.sampler.next_episode[rows]
        first = ahead.begin(ids)
        if len(rows) < len(self.ready):
            first = {name: values.index_copy(0, ids, first[name]) for name, values in self.observation.items()}
        self.observation = first
        self.ready[rows] = episodes.sampler.next_episode[rows]
