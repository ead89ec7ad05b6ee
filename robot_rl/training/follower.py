"""The run folder as the ranks other than the first see it: they read its checkpoint and write nothing."""

import time
from pathlib import Path
from typing import Any

from robot_rl.training.checkpoint import load_state
from robot_rl.training.run import Run
from robot_rl.util import ranks


class Follower(Run):
    """A run that another rank writes."""

    def __init__(self, folder: Path):
        self.folder, self.checkpoint_file = folder, folder / "checkpoint.safetensors"
        self.stop_signal, self._handlers = 0, {}
        self.elapsed_before, self._start = 0.0, time.monotonic()

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Do nothing: the first rank logs."""

    def write(self, name: str, data: Any) -> Path:
        """Do nothing but return the path, which the first rank writes."""
        return self.folder / name

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Do nothing: the first rank saves."""

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint's state; None if there is no checkpoint."""
        if not self.checkpoint_file.exists():
            return None
        saved = load_state(self.checkpoint_file)
        self.elapsed_before, self._start = saved["elapsed"], time.monotonic()
        state: dict[str, Any] = saved["state"]
        return state

    def close(self) -> None:
        self._restore_signals()

    def _clear(self) -> bool:
        return False


def open_run(folder: Path, config: dict[str, Any], resume: bool = False, extendable_setting: str = "") -> Run:
    """Open a run folder, in ranks other than the first as a follower."""
    return Follower(folder) if ranks.rank() else Run(folder, config, resume, extendable_setting)
