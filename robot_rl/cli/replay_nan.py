"""`robot-rl replay-nan`: replay an episode whose physics diverged, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

_ROWS = 12
"""Ticks of the joint commands shown before the end."""


@dataclass
class ReplayNan:
    """Replay an episode whose physics diverged, and show what diverged first and what led there.

    train keeps such episodes in RUN/diverged/, collect in DATASET/diverged/, evaluate beside its --out."""

    file: tyro.conf.Positional[Path]
    """Kept episode."""
    device: str = ""
    """Device of the physics: cpu or cuda; empty: as recorded."""
    mjcf: str = ""
    """MJCF file of the robot; empty: as recorded."""
    json: bool = False
    """Print one JSON object with every tick instead of tables."""

    def run(self) -> int:
        """Replay; return the exit status."""
        import torch
        from rich.table import Table

        from robot_rl.cli.console import printer, show
        from sim.replay import replay

        torch.set_num_threads(1)
        result = replay(self.file, device=self.device, mjcf=self.mjcf)
        episode = result.episode
        summary: dict[str, Any] = {k: episode[k] for k in ("task", "engine", "seed", "episode")}
        summary |= {"recorded_step": result.recorded, "diverged_step": result.diverged, "first": result.first}
        if result.diverged != result.recorded:
            summary["note"] = f"not as recorded, with {episode['version']}; now {result.version}"
        if self.json:
            show(summary | {"drawn": episode["drawn"], "trace": result.trace}, True)
            return 0
        show(summary, False, "replay")
        show({k.removeprefix("randomization/"): v for k, v in episode["drawn"].items()}, False, "sampled")
        table = Table(title="ticks; positions in m or rad, velocities per s, torques N m, forces N", box=None)
        for name in result.trace[0]:
            table.add_column(name.replace("_", " "), justify="left" if name == "fastest" else "right")
        for row in result.trace[-_ROWS:]:
            table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
        printer().print(table)
        return 0
