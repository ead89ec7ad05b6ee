"""File of a robot's motion, motion.npz in a run folder: per tick of the command loop what was measured and sent."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.util.errors import ConfigError
from robot_rl.util.files import replacing

NAME, FORMAT = "motion.npz", 1
OBJECT = "object."
"""Prefix of the columns (N, 4) with the arrival, s, and position, m, of an object's newest pose."""
COLUMNS = ("time", "received", "position", "velocity", "setpoint", "gripper", "follows")
"""Columns of every log."""


@dataclass(frozen=True)
class Motion:
    """Motion of one robot over N ticks."""

    facts: dict[str, Any]
    """`robot`, `task`, `command` (kind of the set-points), `command_rate` and `state_rate`, Hz, `period`, s,
    `lockstep`, and whether the log is `whole`: a longer run has only its end."""
    time: np.ndarray
    """Time of each tick, (N,) s, from the first on."""
    received: np.ndarray
    """Time of the newest joint state at each tick, (N,) s, on the same clock."""
    position: np.ndarray
    """Measured joint positions, (N, J) rad, in the spec's order."""
    velocity: np.ndarray
    """Measured joint velocities, (N, J) rad/s."""
    setpoint: np.ndarray
    """Set-points that were sent, (N, D)."""
    gripper: np.ndarray
    """Finger distance that was sent, (N,) m."""
    follows: np.ndarray
    """Whether set-points follow the goal, (N,); False: held or stopped."""
    quat: np.ndarray | None = None
    """Orientation of a legged robot's trunk, (N, 4) w x y z."""
    gyroscope: np.ndarray | None = None
    """Angular velocity of a legged robot's trunk, (N, 3) rad/s, trunk frame."""
    objects: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Arrival (M,) s and position (M, 3) m, base frame, of each tracked object's poses."""


def write_motion(folder: Path, facts: dict[str, Any], columns: dict[str, np.ndarray]) -> None:
    """Write a log atomically; times begin with 0."""
    start = columns["time"][0]
    shifted = columns | {name: columns[name] - start for name in ("time", "received")}
    poses = {name: column for name, column in columns.items() if name.startswith(OBJECT)}
    shifted |= {name: column - [start, 0, 0, 0] for name, column in poses.items()}
    with replacing(folder / NAME) as part, open(part, "wb") as file:
        np.savez_compressed(file, facts=np.array(json.dumps(facts | {"format": FORMAT})), **shifted)


def read_motion(path: Path) -> Motion:
    """Read the log of a run folder, or a log's own path; ConfigError says what is wrong with it."""
    file = path / NAME if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{path} has no {NAME}: name the folder of a run of `robot-rl deploy` that sent commands")
    try:
        with np.load(file, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in stored.files}
        facts = json.loads(str(columns.pop("facts")))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{file} cannot be read ({error}): copy the run folder again") from error
    if facts.get("format") != FORMAT:
        raise ConfigError(f"{file} has format {facts.get('format')}, this version reads {FORMAT}: record the run again")
    rows = {len(column) for column in columns.values()}
    if missing := [name for name in COLUMNS if name not in columns]:
        raise ConfigError(f"{file} lacks {', '.join(missing)}: copy the run folder again")
    if len(rows) != 1:
        raise ConfigError(f"{file} has columns of different lengths: copy the run folder again")
    objects = {}
    for name in [name for name in columns if name.startswith(OBJECT)]:
        column = columns.pop(name)
        new = np.isfinite(column[:, 0]) & (np.diff(column[:, 0], prepend=-np.inf) > 0)
        objects[name.removeprefix(OBJECT)] = (column[new, 0], column[new, 1:])
    return Motion(facts, **columns, objects=objects)
