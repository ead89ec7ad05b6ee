"""Choice of practice tasks: medium success rate and few tries first; optionally narrowed by a language model.

The score of Zhou et al. 2024, "Autonomous Improvement of Instruction Following Skills via Foundation Models" (arXiv
2407.20635): 1 - |success rate - 0.3| + c sqrt(log N / n).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robot_rl.assistant import ModelConfig, ModelFailure, ReplyModel, message
from robot_rl.util.limits import Fraction, NonNegativeFloat

PROMPT = """A robot practises by itself. Below are numbered tasks, with how often each was tried and judged a success.
Which of them can be done in this scene, and are worth trying next? Those that are always or never done teach little.
Answer with their numbers, separated by commas, and nothing else."""


@dataclass(frozen=True)
class ProposerConfig:
    """Hyperparameters of the choice of tasks."""

    aim: Fraction = 0.3
    """Success rate with the highest score."""
    curiosity: NonNegativeFloat = 0.5
    """Weight c of the exploration term, which is large for tasks with few tries."""
    random: Fraction = 0.2
    """Share of uniform choices."""


class Proposer:
    """Choose among K tasks by their counts of tries and of a judge's verdicts."""

    def __init__(self, count: int, config: ProposerConfig):
        self.config = config
        self.tried, self.judged, self.won = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
        """Number of choices, verdicts and positive verdicts (K,)."""

    def scores(self) -> Tensor:
        """Return the score (K,) of every task; infinite for a task without a try."""
        rate = self.won / self.judged.clamp(min=1)
        doubt = (self.tried.sum().clamp(min=1).log() / self.tried).sqrt()
        score = 1 - (rate - self.config.aim).abs() + self.config.curiosity * doubt
        return torch.where(self.tried > 0, score, torch.inf)

    def choose(self, rng: torch.Generator, feasible: Sequence[int] = ()) -> int:
        """Choose a task among `feasible` (empty: all tasks), and count it as tried."""
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


class Adviser:
    """A language or vision-language model that lists feasible tasks before every round.

    Without an answer, or with an answer that names no task, all tasks stay feasible.
    """

    def __init__(self, config: ModelConfig):
        """Raises ConfigError for a wrong URL."""
        self.model = ReplyModel(config)
        self.failed, self.nonsense = 0, 0  # rounds without an answer, and with an answer that names no task

    def feasible(self, tasks: Sequence[str], proposer: Proposer, env: Any) -> list[int]:
        """Return the indices of the tasks that the model lists; [] without a valid answer."""
        lines = [PROMPT]
        for k, (task, tried, won) in enumerate(zip(tasks, proposer.tried, proposer.won, strict=True)):
            lines.append(f"{k + 1}. {task}: tried {int(tried)} times, {int(won)} successes")
        scene = [env.render()[0]] if hasattr(env, "render") else []
        try:
            answer = self.model.ask([message("user", "\n".join(lines), *scene)])
        except ModelFailure:
            self.failed += 1
            return []
        words = re.findall(r"-?\d+(?:\.\d+)?", answer)
        listed = sorted({int(word) - 1 for word in words if word.isdecimal() and 1 <= int(word) <= len(tasks)})
        self.nonsense += not listed
        return listed

    def counts(self) -> dict[str, float]:
        """Return metrics: the numbers of rounds without an answer and without a named task."""
        return {"proposer/model_failed": float(self.failed), "proposer/model_nonsense": float(self.nonsense)}
