"""`robot-rl replay-nan`: an episode whose physics diverged, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from robot_rl.util.limits import Whole

if TYPE_CHECKING:
    from sim.env import TaskEnv


@dataclass
class ReplayNan:
    """Replay an episode whose physics diverged, alone, and show what went first and what led there.

    train keeps such episodes in RUN/diverged/, collect in DATASET/diverged/, evaluate beside its --out."""

    file: tyro.conf.Positional[Path]
    """Kept episode."""
    rows: Whole = 12
    """Ticks of the joint commands to show before the end; 0: all. --json has all of them."""
    video: Path | None = None
    """Also film it to this mp4."""
    device: str = ""
    """Where the physics runs: cpu or cuda; empty: as recorded."""
    mjcf: str = ""
    """MJCF file of the robot; empty: as recorded."""
    json: bool = False
    """Print one JSON object instead of tables."""

    def run(self) -> int:
        """Replay; return the exit status."""
        import numpy as np
        import torch

        from robot_rl.cli.console import show
        from sim.replay import replay
        from sim.video import HEIGHT, MOST, WIDTH, write_film

        torch.set_num_threads(1)
        frames: list[np.ndarray] = []
        rate, seen = [0], [0]

        def film(env: TaskEnv) -> None:
            every = max(1, round(env.rate / MOST))
            rate[0], seen[0] = round(env.rate / every), seen[0] + 1
            if seen[0] % every == 1 % every:
                frames.append(env.engine.render(0, env.task.scene.cameras[0].name, HEIGHT, WIDTH, "video"))

        result = replay(self.file, device=self.device, mjcf=self.mjcf, on_step=film if self.video else None)
        summary: dict[str, Any] = {k: result.episode[k] for k in ("task", "engine", "seed", "episode")}
        summary |= {"recorded_step": result.recorded, "diverged_step": result.diverged, "first": result.first}
        if result.diverged != result.recorded:
            summary["note"] = f"not as recorded, with {result.episode['version']}; now {result.version}"
        if self.video:
            write_film(frames, self.video, rate[0])
            summary["video"] = str(self.video)
        if self.json:
            show(summary | {"drawn": result.episode["drawn"], "trace": result.trace}, True)
            return 0
        show(summary, False, "replay")
        show({k.removeprefix("randomization/"): v for k, v in result.episode["drawn"].items()}, False, "drawn")
        self._table(result.trace[-self.rows :])
        return 0

    @staticmethod
    def _table(trace: list[dict[str, Any]]) -> None:
        from rich.console import Console
        from rich.table import Table

        table = Table(title="ticks; positions in m or rad, velocities per s, torques N m, forces N", box=None)
        for name in trace[0]:
            table.add_column(name.replace("_", " "), justify="left" if name == "fastest" else "right")
        for row in trace:
            table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
        Console(highlight=False, width=None).print(table)
