"""What a recipe gets from the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from robot_rl.data.recording import load_episodes
from robot_rl.interface.pipeline import Pipeline
from robot_rl.training.run import Run
from robot_rl.util.errors import Misfit

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

    def demonstrations(self, pipeline: Pipeline) -> list[dict[str, Tensor]]:
        """Episodes of the dataset."""
        from sim.tasks import tasks

        if not self.dataset.exists() and not tasks.get(self.task).expert:
            raise Misfit(
                f"{self.dataset} does not exist, and task {self.task!r} has no scripted demonstrator to record one; "
                "learn it with --recipe ppo, or name a dataset with --dataset"
            )
        return load_episodes(self.dataset, pipeline)
