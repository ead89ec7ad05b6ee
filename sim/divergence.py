"""Keep episodes whose physics diverged; `sim.replay` replays an episode.

An episode is determined by its seed, number and actions, which take a few KB. The actions of all running episodes take
num_envs x horizon x A floats of memory: 12 MB for 256 Go2s.
"""

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from robot_rl.util.errors import UserError
from robot_rl.util.files import replace_file, sync_folder

MAX_FILES = 8
"""Largest number of episodes that a process keeps: a task that always diverges does not fill the disk."""
FORMAT = 1
"""Version of the file format."""
_PACKAGES = {"mujoco": "mujoco", "genesis": "genesis-world", "warp": "mujoco-warp"}
"""Python package of each engine; the version of the package determines the results."""


def quiet() -> None:
    """Silence MuJoCo's divergence warnings on stderr and in MUJOCO_LOG.TXT: each divergence is detected and counted."""
    from sim.rendering.gl import mujoco

    def warn(message: str) -> None:
        if "simulation is unstable" not in message:
            sys.stderr.write(f"mujoco: {message}\n")

    mujoco.set_mju_user_warning(warn)


class DivergenceRecorder:
    """Record the actions of running episodes; write the actions of an episode that diverges to a folder."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], num_envs: int, horizon: int, actions: int, device: torch.device
    ):
        """`settings`: the environment's task, engine, device, mjcf, randomize and without."""
        self.folder, self.settings, self.kept = folder, settings, 0
        self.actions = torch.zeros(num_envs, horizon, actions, device=device)
        self.length = torch.zeros(num_envs, dtype=torch.long, device=device)
        """Number of recorded actions of each running episode."""
        self.whole = torch.zeros(num_envs, dtype=torch.bool, device=device)
        """Whether all actions of each running episode are recorded; False after a resume."""
        self._rows = torch.arange(num_envs, device=device)

    def begin(self, ids: Tensor) -> None:
        """Begin an episode in environments `ids`."""
        self.length[ids], self.whole[ids] = 0, True

    def forget(self) -> None:
        """Drop the running episodes, whose first actions are unknown."""
        self.length[:], self.whole[:] = 0, False

    def step(self, actions: Tensor) -> None:
        """Record the actions (n, A) of a control period."""
        self.actions[self._rows, self.length] = actions
        self.length += 1

    def keep(self, broken: Tensor, describe: Callable[[int], dict[str, Any]]) -> None:
        """Write the running episodes of environments `broken` (n,), whose physics diverged.

        `describe` returns the seed, the episode's number, its control periods so far (`begun`) and its sampled values
        (`drawn`) for one environment.
        """
        for i in broken.nonzero().squeeze(-1).tolist():
            if not self.whole[i] or self.kept >= MAX_FILES:
                continue
            self.kept += 1
            length, version = int(self.length[i]), engine_version(self.settings["engine"])
            head = self.settings | describe(i) | {"format": FORMAT, "version": version}
            head["begun"] -= length
            file = self.folder / f"{head['task']}-seed{head['seed']}-episode{head['episode']}.safetensors"
            try:
                actions = self.actions[i, :length].cpu().clone()
                replace_file(file, save({"actions": actions}, {"episode": json.dumps(head)}))
                sync_folder(self.folder)
            except OSError as error:
                message = f"cannot keep an episode that diverged: {file}: {error.strerror}; free some space"
                raise UserError(message) from None


def engine_version(engine: str) -> str:
    """Return the name and the version of an engine's Python package."""
    return f"{_PACKAGES[engine]} {metadata.version(_PACKAGES[engine])}"


def report(folder: Path) -> dict[str, str]:
    """Return result entries about the episodes kept in a folder; no entries if no episode was kept."""
    return {"diverged": str(folder)} if any(folder.glob("*.safetensors")) else {}
