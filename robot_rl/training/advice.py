"""A model that lists what is worth trying, from a picture of the scene and what succeeded so far.

Its list only narrows the choice of the next round. A model that fails, or whose answer names nothing, narrows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from robot_rl.assistant import ModelConfig, ModelFailure, ReplyModel, message
from robot_rl.training.proposer import Proposer

ASKS = """A robot practises by itself. Below are numbered tasks, with how often each was tried and judged a success.
Which of them can be done in this scene, and are worth trying next? Those that are always or never done teach little.
Answer with their numbers, separated by commas, and nothing else."""


class Adviser:
    """Ask a model before each round."""

    def __init__(self, config: ModelConfig):
        """ConfigError for a wrong URL."""
        self.model = ReplyModel(config)
        self.failed, self.nonsense = 0, 0
        """Rounds without an answer, and with one that named no task."""

    def feasible(self, tasks: Sequence[str], proposer: Proposer, env: Any) -> list[int]:
        """Return the tasks (indices) that the model lists; [] where it does not."""
        lines = [ASKS]
        for k, (task, tried, won) in enumerate(zip(tasks, proposer.tried, proposer.won, strict=True)):
            lines.append(f"{k + 1}. {task}: tried {int(tried)} times, {int(won)} successes")
        try:
            answer = self.model.ask([message("user", "\n".join(lines), *scene(env))])
        except ModelFailure:
            self.failed += 1
            return []
        words = re.findall(r"-?\d+(?:\.\d+)?", answer)
        found = sorted({int(word) - 1 for word in words if word.isdecimal() and 1 <= int(word) <= len(tasks)})
        self.nonsense += not found
        return found

    def counts(self) -> dict[str, float]:
        """Return metrics: rounds without an answer, and with a useless one."""
        return {"proposer/model_failed": float(self.failed), "proposer/model_nonsense": float(self.nonsense)}


def scene(env: Any) -> list[Any]:
    """Return a picture of the first environment, uint8 (H, W, 3), in a list; [] where it has no renderer."""
    return [env.render()[0]] if hasattr(env, "render") else []


def in_words(centre: Tensor, achieved: str) -> str:
    """Return a region of goals as a task."""
    return f"bring {achieved} to about ({', '.join(f'{value:.2f}' for value in centre.tolist())}) m"
