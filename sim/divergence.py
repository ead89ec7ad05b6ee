"""Keep episodes whose physics diverged; `sim.replay` replays one.

An episode is determined by its seed, number and actions, a few KB. Running episodes take num_envs x horizon x A floats:
12 MB for 256 Go2s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import replace_file, sync_folder

MOST = 8
"""Most files that one process writes, so that a task that always diverges does not fill the disk."""
_FORMAT = 1
_ENGINES = {"mujoco": "mujoco", "genesis": "genesis-world"}
"""Packages whose versions determine the results."""


def quiet() -> None:
    """Silence MuJoCo's warnings about divergence on stderr and in MUJOCO_LOG.TXT: it is detected and counted."""
    from sim.rendering.gl import mujoco

    def tell(message: str) -> None:
        if "simulation is unstable" not in message:
            sys.stderr.write(f"mujoco: {message}\n")

    mujoco.set_mju_user_warning(tell)


class DivergenceRecorder:
    """Keep the actions of running episodes, and write those of one that diverges to a folder."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], num_envs: int, horizon: int, actions: int, device: torch.device
    ):
        """`settings` are those of the environment: task, engine, device, mjcf, randomize, without."""
        self.folder, self.settings = folder, settings
        self.actions = torch.zeros(num_envs, horizon, actions, device=device)
        self.length = torch.zeros(num_envs, dtype=torch.long, device=device)
        """Actions of each running episode so far."""
        self.whole = torch.zeros(num_envs, dtype=torch.bool, device=device)
        """Return whether these are all actions of the episode: false if it was resumed."""
        self.kept = 0
        self._rows = torch.arange(num_envs, device=device)

    def begin(self, ids: Tensor) -> None:
        """Begin an episode in environments `ids`."""
        self.length[ids], self.whole[ids] = 0, True

    def forget(self) -> None:
        """Drop the running episodes, whose first actions are unknown."""
        self.length[:], self.whole[:] = 0, False

    def step(self, actions: Tensor) -> None:
        """Record actions (n, A)."""
        self.actions[self._rows, self.length] = actions
        self.length += 1

    def keep(self, broken: Tensor, describe: Callable[[int], dict[str, Any]]) -> None:
        """Write the running episodes of environments `broken` (n,), whose physics diverged.

        `describe` returns seed, episode, steps and sampled values of the running episode of one environment.
        """
        for i in broken.nonzero().squeeze(-1).tolist():
            if self.whole[i] and self.kept < MOST:
                self._keep(i, describe(i))
                self.kept += 1

    def _keep(self, i: int, episode: dict[str, Any]) -> None:
        length = int(self.length[i])
        name = f"{self.settings['task']}-seed{episode['seed']}-episode{episode['episode']}"
        file = self.folder / f"{name}.safetensors"
        head = self.settings | {
            "format": _FORMAT,
            "seed": episode["seed"],
            "episode": episode["episode"],
            "begun": episode["steps"] - length,
            "drawn": episode["sampled"],
            "version": engine_version(self.settings["engine"]),
        }
        content = save({"actions": self.actions[i, :length].cpu().clone()}, {"episode": json.dumps(head)})
        try:
            replace_file(file, content)
            sync_folder(self.folder)
        except OSError as error:
            raise UserError(
                f"cannot keep an episode that diverged: {file}: {error.strerror}; free some space"
            ) from None


def engine_version(engine: str) -> str:
    """Return the package of an engine, with its version."""
    package = _ENGINES[engine]
    return f"{package} {metadata.version(package)}"


def report(folder: Path) -> dict[str, str]:
    """Return result entries about the episodes kept in a folder; empty if there are none."""
    return {"diverged": str(folder)} if any(folder.glob("*.safetensors")) else {}


def read(file: Path) -> tuple[dict[str, Any], Tensor]:
    """Return the header of a kept episode, and its actions (T, A)."""
    if file.is_dir():
        inside = sorted(p.name for p in (*file.glob("*.safetensors"), *file.glob("diverged/*.safetensors")))
        raise ConfigError(f"{file} is a folder; name one of its files: {', '.join(inside) or 'it has none'}")
    try:
        with safe_open(file, "pt") as content:
            head = json.loads((content.metadata() or {})["episode"])
            actions = content.get_tensor("actions")
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist; runs keep episodes that diverged in RUN/diverged/") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UserError(f"{file} is damaged or no episode that diverged ({error})") from None
    if head.get("format") != _FORMAT:
        raise UserError(f"{file}: format {head.get('format')}, but this robot-rl reads {_FORMAT}; update robot-rl")
    return head, actions
