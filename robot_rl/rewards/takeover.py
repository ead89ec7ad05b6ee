"""Takeovers as the only reward: Luo et al. 2023, "RLIF: Interactive Imitation Learning as Reinforcement Learning"
(arXiv 2311.12996)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def led_to_takeover(intervention: Tensor) -> Tensor:
    """Return which steps (T,) bool of an episode are followed by a takeover: the last of the policy's before each.

    `intervention` (T,) is true in steps that the person executed. A takeover in the first step follows none.
    """
    following = torch.cat([intervention[1:], intervention.new_zeros(1)])
    return following & ~intervention


@dataclass(frozen=True)
class TakeoverReward:
    """-1 in the step that led to a takeover, 0 otherwise; the task's own reward is not read."""

    def relabel(self, episode: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a recorded episode with this reward (T,); without `intervention` it is 0. What terminated stays."""
        terminated = episode.get("terminated", episode["reward"] > 0)
        held = episode.get("intervention", torch.zeros_like(terminated)).bool()
        return episode | {"reward": -led_to_takeover(held).float(), "terminated": terminated}

    def limits(self, discount: float) -> tuple[float, float]:
        """Return the least and the greatest possible return: a takeover at every other step, and none."""
        return -1 / max(1 - discount**2, 1e-6), 0.0
