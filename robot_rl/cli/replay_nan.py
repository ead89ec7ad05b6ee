"""`robot-rl replay-nan`: replay an episode whose physics diverged, step by step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

_ROWS = 12
"""Number of ticks shown before the divergence."""


@dataclass
class ReplayNan:
    """Replay an episode whose physics diverged; show the first diverging quantity and the preceding ticks.

    Files of such episodes are in RUN/diverged/ (train), in DATASET/diverged/ (collect) and beside --out (evaluate)."""

    file: tyro.conf.Positional[Path]
    """File of the episode."""
    device: str = ""
    """Physics device: cpu or cuda; default: as recorded."""
    mjcf: str = ""
    """MJCF file of the robot; default: as recorded."""
    json: bool = False
    """Print one JSON object with every tick instead of tables."""

    def run(self) -> int:
        import torch

        from robot_rl.cli.console import print_table, show
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
        rows = [[f"{v:.4g}" if isinstance(v, float) else v for v in row.values()] for row in result.trace[-_ROWS:]]
        title = "ticks; positions in m or rad, velocities per s, torques N m, forces N"
        print_table(title, [name.replace("_", " ") for name in result.trace[0]], rows, left=("fastest",))
        return 0
