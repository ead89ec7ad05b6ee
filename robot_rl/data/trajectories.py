"""Episodes as the decisions that were made in them, for learners that compare whole episodes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Trajectories:
    """The episodes of a round, as decisions."""

    columns: dict[str, Tensor]
    """(N, ...) of every decision, in the order of time"""
    episode: Tensor
    """(N,) number of each decision's episode"""
    success: Tensor
    """(E,) bool"""
    steps: Tensor
    """(E,) control periods"""
    group: Tensor
    """(E,) number of each episode's group"""

    def total(self, values: Tensor) -> Tensor:
        """Return the sums (E,) over the decisions of each episode of values (N,)."""
        return values.new_zeros(len(self.success)).index_add(0, self.episode, values)
