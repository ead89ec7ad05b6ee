"""What a recipe gets from the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.training.run import Run

Progress = Callable[[str, int, int, dict[str, float]], None]
"""Called with what is counted, how many are done, how many there are, and the latest metrics."""


@dataclass
class Job:
    """One training job."""

    task: str
    run: Run
    seed: int
    dataset: Path
    base: Path | None
    simulation: dict[str, Any]
    """Keywords of `TaskEnv`: engine, device, mjcf, without, diverged."""
    progress: Progress
