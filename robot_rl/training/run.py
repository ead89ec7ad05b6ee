"""A run folder: configuration, provenance, metrics, checkpoint, bundle.

runs/<date>-<time>-<task>-<recipe>/
    config.json  provenance.json  requirements.txt
    metrics.jsonl  tensorboard/
    checkpoint.safetensors  bundle/  evaluation.json  videos/  diverged/
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass, replace
from datetime import datetime
from importlib import metadata
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError, Interrupted, UserError
from robot_rl.util.files import file_name, replace_file
from robot_rl.util.settings import as_json, check_same, with_larger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def provenance() -> dict[str, Any]:
    """Return commit, versions and machine."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    packages = ("robot-rl", "torch", "mujoco", "genesis-world", "diffusers", "gymnasium", "numpy")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    program = Path(sys.argv[0]).name  # main.py if run as a module
    return {
        "commit": commit or "unknown",
        "versions": versions,
        "python": platform.python_version(),
        "machine": {"cpu": _cpu(), **_gpu(), "cores": os.cpu_count(), "system": platform.system()},
        "command": ["robot-rl" if program == "main.py" else program, *sys.argv[1:]],
        "started": datetime.now().isoformat(timespec="seconds"),
    }


def _gpu() -> dict[str, str]:
    return {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def write_text(path: Path, text: str) -> Path:
    """Replace a file atomically: a kill leaves the old text or the new."""
    replace_file(path, text.encode())
    return path


def write_json(path: Path, data: Any) -> Path:
    """Write a JSON file by atomic rename."""
    return write_text(path, strict_json.dumps(data, indent=2))


def new_folder(root: Path, task: str, recipe: str) -> Path:
    """Return an unused name under `root`: <date>-<time>-<task>-<recipe>, with a number if taken."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{file_name(task)}-{file_name(recipe)}"
    folder, k = root / stem, 2
    while folder.exists():
        folder, k = root / f"{stem}-{k}", k + 1
    return folder


def latest_folder(root: Path, task: str, recipe: str, holds: str = "checkpoint.safetensors") -> Path:
    """Return the newest run of a task and recipe that has this file; `holds` may be a pattern."""
    found = sorted(
        folder for folder in root.glob(f"*-{file_name(task)}-{file_name(recipe)}*") if any(folder.glob(holds))
    )
    if not found:
        raise ConfigError(
            f"nothing to resume: no run of {task} with {recipe} under {root}/ holds a {holds}; name it with --out"
        )
    return found[-1]


SEED = "seed-"
"""A folder of runs that differ in their seed names each of them `seed-<seed>`."""


def seed_runs(folder: Path) -> list[Path]:
    """Return the runs in a folder of seed runs by their seeds; empty if it is none."""
    if (folder / "config.json").is_file() or not folder.is_dir():
        return []
    found = {int(path.name.removeprefix(SEED)): path for path in folder.glob(f"{SEED}*") if path.name[5:].isdecimal()}
    return [found[seed] for seed in sorted(found) if found[seed].is_dir()]


def has_ended(folder: Path) -> bool:
    """Return whether a run's training has ended: its bundle is there, and not one of a checkpoint."""
    try:
        return "step" not in json.loads((folder / "bundle" / "policy.json").read_bytes())["provenance"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


MAY_DIFFER = {"minutes", "threads", "inputs"}
"""Settings that a resumed run may change; what it reads is compared by `robot_rl.recipes.inputs`."""


_FIRST = "provenance.json"
"""Written first; identifies a run folder."""
_BARE = {".lock", _FIRST, "config.json", "requirements.txt", "metrics.jsonl", "dataset.json", "randomization.json"}
"""Files of a run folder without results."""


class Run:
    """One run folder, locked while open so that two processes never write to it.

    A folder with other files, or with another run, raises ConfigError. After an error before the first result, the
    folder is removed. `extendable_setting` names a setting that may be larger when the run is resumed."""

    def __init__(self, folder: Path, config: dict[str, Any], resume: bool = False, extendable_setting: str = ""):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = sorted(path.name for path in folder.iterdir())
            other = [name for name in names if name != ".lock" and not name.startswith(f".{_FIRST}.")]
            if other and not (folder / _FIRST).exists():
                raise ConfigError(f"{folder} is not a run folder and not empty ({other[0]}); choose another --out")
            self._lock: IO[str] = open(folder / ".lock", "w")  # noqa: SIM115 - held while the run is open
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"run folder {folder} is in use by another process; choose another --out") from None
        except OSError as error:
            with suppress(OSError):
                folder.rmdir()  # if it is empty: on a full disk there is room for a folder, but not for a file
            raise UserError(f"cannot write to run folder {folder}: {error.strerror}; choose another --out") from None
        now = as_json(config)
        if (folder / "config.json").exists():
            results = ("checkpoint.safetensors", "bundle", "dataset", "evaluation.json")
            metrics = folder / "metrics.jsonl"
            started = any((folder / name).exists() for name in results) or (metrics.exists() and metrics.stat().st_size)
            if not resume and started:
                raise ConfigError(
                    f"run folder {folder} holds a run already; continue with --resume or choose another --out"
                )
            if resume:
                before = json.loads((folder / "config.json").read_text())
                longer = with_larger(before, now, extendable_setting) if extendable_setting else before
                check_same(folder, longer, now, MAY_DIFFER)
                if longer != before:
                    write_json(folder / "config.json", longer)
        for left in folder.glob(".*.part"):  # left by a killed process, since the lock is free
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self.checkpoint_file = folder / "checkpoint.safetensors"
        self.stop_signal = 0
        """Number of a signal to stop, or 0: the loop finishes its step, saves a checkpoint and ends."""
        self._handlers: dict[signal.Signals, Any] = {}
        self.elapsed_before = 0.0
        self._start = time.monotonic()
        self._board: SummaryWriter | None = None  # opened with the first row
        self._purge: int | None = None
        try:
            if not (resume and (folder / "config.json").exists()):
                self.write(_FIRST, provenance())
                self.write("config.json", now)
                freeze = sorted(f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions())
                write_text(folder / "requirements.txt", "\n".join(dict.fromkeys(freeze)) + "\n")
            self._metrics = self._open_metrics()
        except BaseException:
            self._lock.close()
            self._clear()
            raise

    @property
    def elapsed(self) -> float:
        """Return the seconds of work so far, including those before a resume."""
        return self.elapsed_before + time.monotonic() - self._start

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append one row to metrics.jsonl and TensorBoard; `step` is the loop's count."""
        row = {"step": step, "seconds": round(self.elapsed, 3)} | {k: float(v) for k, v in metrics.items()}
        with _naming(self.folder / "metrics.jsonl"):
            self._append(strict_json.dumps(row) + "\n")
        with _naming(self.folder / "tensorboard"):
            if self._board is None:
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=self._purge)
            for name, value in metrics.items():
                self._board.add_scalar(name, float(value), step)

    def _open_metrics(self) -> FileIO:
        """Open metrics.jsonl unbuffered: each row is written at once, so closing cannot fail on a full disk."""
        return open(self.folder / "metrics.jsonl", "ab", buffering=0)

    def _append(self, row: str) -> None:
        """Append a row to metrics.jsonl; on a full disk, append nothing."""
        start, rest = self._metrics.seek(0, os.SEEK_END), memoryview(row.encode())
        try:
            while rest:
                rest = rest[self._metrics.write(rest) :]
        except OSError:
            self._metrics.truncate(start)
            raise

    def write(self, name: str, data: Any) -> Path:
        """Write a JSON file by atomic rename."""
        return write_json(self.folder / name, data)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        save_state({"step": step, "elapsed": self.elapsed, "state": state}, self.checkpoint_file)

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint's state, or None without one; drop later metrics, so that curves continue from it."""
        saved = load_state(self.checkpoint_file) if self.checkpoint_file.exists() else None
        reached = saved["step"] if saved is not None else -1
        if saved is not None:
            self.elapsed_before, self._start = saved["elapsed"], time.monotonic()
        self._purge = reached + 1  # makes TensorBoard forget the rows that are dropped below
        self._metrics.close()
        path = self.folder / "metrics.jsonl"
        kept = []
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line)["step"] <= reached:
                kept.append(line)
        write_text(path, "".join(kept))
        self._metrics = self._open_metrics()
        return saved["state"] if saved is not None else None

    def stop_on_signals(self) -> None:
        """Let SIGINT (Ctrl-C) and SIGTERM set `stop_signal` until `close`; a second one ends the process at once."""

        def ask(number: int, _: object) -> None:
            self.stop_signal = number
            self._restore_signals()

        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, ask)

    def _restore_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def end_if_stopped(self, step: int) -> None:
        """Raise `Interrupted` after a signal to stop; call it when step `step` has been saved."""
        if self.stop_signal:
            name = signal.Signals(self.stop_signal).name
            raise Interrupted(
                f"stopped by {name} at step {step}, which is saved; continue with {again(self.folder)}",
                self.stop_signal,
            )

    def close(self) -> None:
        self._restore_signals()
        self._metrics.close()
        try:
            if self._board is not None:
                with _naming(self.folder / "tensorboard"):
                    self._board.close()
        finally:
            self._lock.close()

    def _clear(self) -> bool:
        """Remove the folder if it has no results; return whether it was removed."""
        metrics = self.folder / "metrics.jsonl"
        held = {path.name for path in self.folder.iterdir()} - _BARE
        if held or (metrics.exists() and metrics.stat().st_size):
            return False
        shutil.rmtree(self.folder)
        return True

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        try:
            self.close()
        except OSError:
            if kind is None:  # otherwise the first error is reported
                raise
        gone = kind is not None and self._clear()
        if kind is KeyboardInterrupt and error is not None:
            left = " before anything had finished; its folder is gone:" if gone else "; what had finished is in"
            raise Interrupted(f"interrupted{left} {self.folder}", *error.args[:1]) from None


def again(folder: Path) -> str:
    """Return the command that resumes this process's run; from another program only the options."""
    program, *words = sys.argv
    ours = Path(program).name in ("robot-rl", "main.py")
    words = words if ours else []
    words += [] if "--resume" in words else ["--resume"]
    words += [] if any(word.split("=")[0] == "--out" for word in words) else ["--out", str(folder)]
    return shlex.join(["robot-rl", *words] if ours else words)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError, which writing to an open file leaves out."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from None


def configured(template: Any, values: Any) -> Any:
    """Return a copy of the dataclass `template` with the values of config.json."""
    if is_dataclass(template) and not isinstance(template, type):
        return replace(template, **{k: configured(getattr(template, k), v) for k, v in values.items()})
    return tuple(values) if isinstance(template, tuple) else values


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the rows of metrics.jsonl; skip a line cut short by a crash."""
    rows = []
    path = folder / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows
