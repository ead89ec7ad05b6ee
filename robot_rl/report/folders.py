"""Read run folders; any file may be missing, truncated or unknown."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot_rl.util.errors import ConfigError, UserError

Row = dict[str, Any]

_PARTS = (
    "config.json", "provenance.json", "metrics.jsonl", "evaluation*.json", "dataset.json", "randomization.json",
    "loop.json", "episodes.jsonl", "videos/*.mp4", "bundle/policy.json",
)  # fmt: skip
"""File patterns of a run; a folder that contains such a file is a run folder."""


@dataclass
class RunFolder:
    """Contents of a run folder; a part is empty if its file is missing."""

    path: Path
    name: str
    config: Row = field(default_factory=dict)
    provenance: Row = field(default_factory=dict)
    metrics: list[Row] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    dataset: Row = field(default_factory=dict)
    randomization: list[Row] = field(default_factory=list)
    loop: Row = field(default_factory=dict)
    episodes: list[Row] = field(default_factory=list)
    videos: list[Path] = field(default_factory=list)
    captions: Row = field(default_factory=dict)
    bundle: Row = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Sentences about files that could not be read."""

    @property
    def started(self) -> str:
        """Return the start time of the run, ISO 8601; empty if not recorded."""
        value = self.provenance.get("started")
        return value if isinstance(value, str) else ""

    def setting(self, name: str) -> str:
        """Return a top-level entry of the configuration as text; empty if absent."""
        value = self.config.get(name)
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def read_folders(folders: Sequence[Path]) -> list[RunFolder]:
    """Read run folders, and folders of run folders (sorted by start time)."""
    runs: list[RunFolder] = []
    seen: set[Path] = set()
    for folder in folders:
        for found in runs_in(folder):
            if found.resolve() not in seen:
                seen.add(found.resolve())
                runs.append(read_folder(found))
    for run in runs:
        if sum(other.name == run.name for other in runs) > 1:
            run.name = f"{run.path.resolve().parent.name}/{run.path.resolve().name}"
    return runs


def runs_in(folder: Path) -> list[Path]:
    """Return the folder itself if it is a run, then the runs in it by start time. Raises ConfigError without runs."""
    if not folder.exists():
        raise ConfigError(f"{folder} does not exist; name a run folder, or a folder of them, runs/<date>-<time>-demo")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name the run folder that holds it")
    try:
        children = sorted(child for child in folder.iterdir() if child.is_dir() and _is_run(child))
        own = [folder] if _is_run(folder) else []
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}; change its permissions") from error
    if not own and not children:
        raise ConfigError(
            f"{folder} is not a run folder: neither it nor a folder in it has a config.json, metrics.jsonl, "
            "evaluation.json or loop.json; name one that robot-rl wrote under runs/"
        )
    # Runs without a start time come first, such as the baseline's evaluation (random actions).
    return own + sorted(children, key=_started)


def _started(folder: Path) -> str:
    return RunFolder(folder, "", provenance=read_json(folder / "provenance.json", dict, [])).started


def _is_run(folder: Path) -> bool:
    return any(next(folder.glob(part), None) is not None for part in _PARTS)


def read_folder(folder: Path) -> RunFolder:
    """Read one run folder."""
    run = RunFolder(folder, folder.resolve().name)
    notes = run.notes
    run.config = read_json(folder / "config.json", dict, notes)
    run.provenance = read_json(folder / "provenance.json", dict, notes)
    run.metrics = _read_lines(folder / "metrics.jsonl", notes)
    run.metrics += _read_lines(folder / "learner" / "metrics.jsonl", notes)  # of a session on a robot
    run.evaluations = [read_json(path, dict, notes) for path in sorted(folder.glob("evaluation*.json"))]
    run.evaluations = [found for found in run.evaluations if found]
    run.dataset = read_json(folder / "dataset.json", dict, notes)
    run.randomization = _rows(read_json(folder / "randomization.json", list, notes))
    run.loop = read_json(folder / "loop.json", dict, notes)
    run.episodes = _read_lines(folder / "episodes.jsonl", notes)
    run.videos = sorted(path for path in folder.glob("videos/*.mp4") if path.is_file())
    run.captions = read_json(folder / "videos" / "captions.json", dict, notes)
    run.bundle = read_json(folder / "bundle" / "policy.json", dict, notes)
    return run


def read_json(path: Path, kind: type, notes: list[str]) -> Any:
    """Return a JSON file's content; an empty `kind` if absent, or, with a note, if damaged or of another type."""
    if not path.is_file():
        return kind()
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        notes.append(f"{path} is damaged and was left out")
        return kind()
    if isinstance(found, kind):
        return found
    notes.append(f"{path} does not hold a {'list' if kind is list else 'table'} and was left out")
    return kind()


def _read_lines(path: Path, notes: list[str]) -> list[Row]:
    """Return the rows of a JSON Lines file; add a note on the number of unreadable lines, if any, as after a crash."""
    if not path.is_file():
        return []
    rows: list[Any] = []
    damaged = 0
    try:
        for line in path.read_bytes().splitlines():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                damaged += 1
    except OSError:
        notes.append(f"{path} cannot be read and was left out")
    kept = _rows(rows)
    damaged += len(rows) - len(kept)
    if damaged:
        notes.append(f"{damaged} unreadable line{'s' * (damaged > 1)} of {path} left out")
    return kept


def _rows(values: Iterable[Any]) -> list[Row]:
    return [value for value in values if isinstance(value, dict)]
