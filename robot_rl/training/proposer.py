"""Choose what to practise next: what succeeds in about three of ten tries, and what was seldom tried.

The score of Zhou et al. 2024, "Autonomous Improvement of Instruction Following Skills via Foundation Models" (arXiv
2407.20635): 1 - |success rate - 0.3| + c sqrt(log N / n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.util.limits import Fraction, NonNegativeFloat


@dataclass(frozen=True)
class ProposerConfig:
    """How tasks are chosen."""

    aim: Fraction = 0.3
    """Success rate of the tasks that are most worth practising."""
    curiosity: NonNegativeFloat = 0.5
    """Weight c of what was seldom tried."""
    random: Fraction = 0.2
    """Share of the choices that are uniform."""


class Proposer:
    """Counts of each of K tasks, and choices by them. Only verdicts of a judge reach it, right or wrong."""

    def __init__(self, count: int, config: ProposerConfig):
        self.config = config
        self.tried, self.judged, self.won = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
        """(K,) how often each was chosen, judged, and judged a success."""

    def scores(self) -> Tensor:
        """Return the score (K,) of each task; infinite for one that was never tried."""
        rate = self.won / self.judged.clamp(min=1)
        doubt = (self.tried.sum().clamp(min=1).log() / self.tried).sqrt()
        score = 1 - (rate - self.config.aim).abs() + self.config.curiosity * doubt
        return torch.where(self.tried > 0, score, torch.inf)

    def choose(self, rng: torch.Generator, feasible: Sequence[int] = ()) -> int:
        """Return a task, and count it as tried: of the `feasible` ones, or of all."""
        among = torch.tensor(feasible) if feasible else torch.arange(len(self.tried))
        pick, uniform = torch.rand(2, generator=rng).tolist()
        if pick < self.config.random:
            chosen = int(among[int(uniform * len(among))])
        else:
            scores = self.scores()[among]
            best = (scores == scores.max()).nonzero()[:, 0]
            chosen = int(among[best[int(uniform * len(best))]])
        self.tried[chosen] += 1
        return chosen

    def judge(self, task: int, success: bool) -> None:
        """Count a verdict."""
        self.judged[task] += 1
        self.won[task] += success

    def state_dict(self) -> dict[str, Tensor]:
        return {"tried": self.tried, "judged": self.judged, "won": self.won}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)
