"""What the loops say about themselves: rows of metrics, returns and lengths of episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robot_rl.training.run import Run
from robot_rl.util.errors import UserError

Progress = Callable[[int, dict[str, float]], None]
"""Called with what the loop counts and the latest metrics."""


class Diverged(UserError, FloatingPointError):  # noqa: N818 - it reads as a sentence
    """Learning came to numbers that are none; a setting of the user's is the cause, most often the learning rate.

    Attributes:
        code: 2, as of bad input: started again, it would end the same.
    """

    code = 2


def diverged(run: Run, step: int, what: str) -> Diverged:
    """The error for `what` at `step`: which checkpoint is left, and what helps."""
    left = "the last checkpoint is intact" if run.checkpoint_file.exists() else "no checkpoint had been written"
    return Diverged(f"{what} at step {step}; {left}; start again with a smaller learning rate and another --out")


def check_finite(run: Run, step: int, row: dict[str, float]) -> None:
    """Stop the run before numbers that are none reach its checkpoint."""
    for name, value in row.items():
        if not math.isfinite(value):
            raise diverged(run, step, f"{name} became {'NaN' if math.isnan(value) else 'infinite'}")


def report(run: Run, step: int, row: dict[str, float], progress: Progress) -> None:
    """Log a row and show it."""
    check_finite(run, step, row)
    run.log(step, row)
    progress(step, row)


def counts(env: Any, step: int) -> dict[str, float]:
    """Environment steps so far, and of a simulation the episodes that ended because their physics diverged."""
    row = {"train/steps": float(step)}
    return row | ({"train/divergences": float(env.divergences)} if hasattr(env, "divergences") else {})


class Episodes:
    """Return and length of the running episodes; means over those that ended last."""

    def __init__(self, num_envs: int, device: torch.device, window: int = 200):
        self.total = torch.zeros(num_envs, device=device)
        """(N,) reward of the running episodes so far"""
        self.length = torch.zeros(num_envs, device=device)
        """(N,) their steps so far"""
        window = max(window, num_envs)
        self.recent: dict[str, deque[float]] = {name: deque(maxlen=window) for name in ("return", "length", "success")}

    def add(self, reward: Tensor, done: Tensor, success: Tensor | None) -> None:
        """Take in one step of every environment, (N,) each."""
        self.total += reward
        self.length += 1
        if done.any():
            ended = {"return": self.total, "length": self.length, "success": success}
            for name, value in ended.items():
                if value is not None:
                    self.recent[name].extend(value[done].float().tolist())
            self.total[done], self.length[done] = 0.0, 0.0

    def summary(self) -> dict[str, float]:
        """Means over the last episodes; nothing before the first has ended."""
        return {f"train/{name}": sum(values) / len(values) for name, values in self.recent.items() if values}

    def state_dict(self) -> dict[str, Any]:
        recent = {name: list(values) for name, values in self.recent.items()}
        return {"total": self.total, "length": self.length, "recent": recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total.copy_(state["total"])
        self.length.copy_(state["length"])
        for name, values in state["recent"].items():
            self.recent[name].extend(values)
