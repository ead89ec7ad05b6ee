"""Run folder: configuration, provenance, metrics, checkpoint, bundle.

runs/<date>-<time>-<task>-<recipe>/
    config.json  provenance.json  requirements.txt
    metrics.jsonl  tensorboard/
    checkpoint.safetensors  bundle/  evaluation.json  videos/  diverged/

This module also has the floating-point and thread settings of learning.
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
from typing import IO, TYPE_CHECKING, Any, Literal

import torch

from robot_rl.training.checkpoint import load_state, save_state
from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError, Interrupted, UserError
from robot_rl.util.files import file_name, replace_file
from robot_rl.util.settings import as_json, check_same, with_larger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def commit_of(folder: Path) -> str:
    """Return the commit of the git repository around `folder`, with "-dirty" if tracked files differ, except published
    results, which a series of checks writes; "unknown" without a repository."""
    changes = ["diff", "--quiet", "HEAD", "--", ":(top)", ":(top,exclude)benchmarks/results"]
    try:
        commit, differ = (
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
            for words in (["rev-parse", "HEAD"], changes)
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return "unknown" if commit.returncode else commit.stdout.strip() + "-dirty" * (differ.returncode == 1)


def provenance() -> dict[str, Any]:
    """Return the provenance of a run: commit, versions and machine."""
    packages = ("robot-rl", "torch", "mujoco", "mujoco-warp", "genesis-world", "diffusers", "gymnasium", "numpy")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    program = Path(sys.argv[0]).name  # main.py if run as a module
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "commit": commit_of(Path(__file__).parent), "versions": versions, "python": platform.python_version(),
        "machine": {"cpu": _cpu(), **gpu, "cores": os.cpu_count(), "system": platform.system()},
        "command": ["robot-rl" if program == "main.py" else program, *sys.argv[1:]],
        "started": datetime.now().isoformat(timespec="seconds"),
    }  # fmt: skip


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write_text(path: Path, text: str) -> Path:
    """Replace a text file by atomic rename; return its path."""
    replace_file(path, text.encode())
    return path


def write_json(path: Path, data: Any) -> Path:
    """Replace a JSON file by atomic rename; return its path."""
    return write_text(path, strict_json.dumps(data, indent=2))


def new_folder(root: Path, task: str, recipe: str) -> Path:
    """Return an unused folder <date>-<time>-<task>-<recipe> under `root`, with a number if the name is taken."""
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{file_name(task)}-{file_name(recipe)}"
    folder, k = root / stem, 2
    while folder.exists():
        folder, k = root / f"{stem}-{k}", k + 1
    return folder


def latest_folder(root: Path, task: str, recipe: str, holds: str = "checkpoint.safetensors") -> Path:
    """Return the newest run of a task and recipe that has a file `holds` (name or glob pattern)."""
    folders = sorted(path for path in root.glob(f"*-{file_name(task)}-{file_name(recipe)}*") if any(path.glob(holds)))
    if not folders:
        raise ConfigError(f"nothing to resume: no run of {task} with {recipe} in {root}/ holds a {holds}; give --out")
    return folders[-1]


SEED = "seed-"
"""Prefix of the folders `seed-<seed>` of runs that differ only in their seeds."""


def seed_runs(folder: Path) -> list[Path]:
    """Return the runs `seed-<seed>` in a folder, sorted by seed; [] if it is no folder of seed runs."""
    if (folder / "config.json").is_file() or not folder.is_dir():
        return []
    runs = {int(path.name.removeprefix(SEED)): path for path in folder.glob(f"{SEED}*") if path.name[5:].isdecimal()}
    return [runs[seed] for seed in sorted(runs) if runs[seed].is_dir()]


def has_ended(folder: Path) -> bool:
    """Return whether a run's training has ended: the run has a bundle that was not made from a checkpoint."""
    try:
        return "step" not in json.loads((folder / "bundle" / "policy.json").read_bytes())["provenance"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


MAY_DIFFER = {"minutes", "threads", "inputs"}
"""Settings that a resumed run may change; `robot_rl.recipes.inputs` compares the inputs."""
_FIRST = "provenance.json"
"""First file that is written to a run folder; it shows that a folder is a run folder."""
_BARE = {".lock", _FIRST, "config.json", "requirements.txt", "metrics.jsonl", "dataset.json", "randomization.json"}
"""Files of a run folder that are no results: a folder with only these files may be removed."""


class Run:
    """A run folder, locked while it is open: only one process writes to it.

    A folder with other files or with another run raises ConfigError. An error before the first result removes the
    folder. `extendable_setting` names a setting that may be larger when the run is resumed."""

    def __init__(self, folder: Path, config: dict[str, Any], resume: bool = False, extendable_setting: str = ""):
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = sorted(path.name for path in folder.iterdir())
            other = [name for name in names if name != ".lock" and not name.startswith(f".{_FIRST}.")]
            if other and not (folder / _FIRST).exists():
                raise ConfigError(f"{folder} is not a run folder and not empty ({other[0]}); choose another --out")
            self._lock: IO[str] = open(folder / ".lock", "w")  # noqa: SIM115 - open until `close`
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"run folder {folder} is in use by another process; choose another --out") from None
        except OSError as error:
            with suppress(OSError):
                folder.rmdir()  # an empty folder: a full disk may have room for a folder but not for a file
            kind = ConfigError if isinstance(error, (FileExistsError, NotADirectoryError)) else UserError
            raise kind(f"cannot write to run folder {folder}: {error.strerror}; choose another --out") from None
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
        for left in folder.glob(".*.part"):  # files of a killed process: the lock was free
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self.checkpoint_file = folder / "checkpoint.safetensors"
        self.stop_signal = 0
        """Number of a received stop signal, or 0. After it, the loop finishes its step, saves a checkpoint and ends."""
        self._handlers: dict[signal.Signals, Any] = {}
        self.elapsed_before = 0.0
        self._start = time.monotonic()
        self._board: SummaryWriter | None = None  # opened at the first row
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
        """Return the seconds of training so far, including those before a resume."""
        return self.elapsed_before + time.monotonic() - self._start

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append a row to metrics.jsonl and TensorBoard; `step` is the loop's counter."""
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
        """Open metrics.jsonl unbuffered: a row is written at once, so closing cannot fail on a full disk."""
        return open(self.folder / "metrics.jsonl", "ab", buffering=0)

    def _append(self, row: str) -> None:
        """Append a row to metrics.jsonl; if the disk is full, append no part of the row and raise OSError."""
        start, rest = self._metrics.seek(0, os.SEEK_END), memoryview(row.encode())
        try:
            while rest:
                rest = rest[self._metrics.write(rest) :]
        except OSError:
            self._metrics.truncate(start)
            raise

    def write(self, name: str, data: Any) -> Path:
        """Replace a JSON file of the run by atomic rename; return its path."""
        return write_json(self.folder / name, data)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Replace the checkpoint by the state at step `step`."""
        save_state({"step": step, "elapsed": self.elapsed, "state": state}, self.checkpoint_file)

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint's state (None if there is no checkpoint), and drop the metrics logged after it."""
        saved = load_state(self.checkpoint_file) if self.checkpoint_file.exists() else None
        reached = saved["step"] if saved is not None else -1
        if saved is not None:
            self.elapsed_before, self._start = saved["elapsed"], time.monotonic()
        self._purge = reached + 1  # TensorBoard drops the same rows
        self._metrics.close()
        path = self.folder / "metrics.jsonl"
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        write_text(path, "".join(line for line in lines if json.loads(line)["step"] <= reached))
        self._metrics = self._open_metrics()
        return saved["state"] if saved is not None else None

    def stop_on_signals(self) -> None:
        """Let SIGINT (Ctrl-C) and SIGTERM set `stop_signal` until `close`; a second signal ends the process at once."""

        def stop(number: int, _: object) -> None:
            self.stop_signal = number
            self._restore_signals()

        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, stop)

    def _restore_signals(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def end_if_stopped(self, step: int, number: int | None = None) -> None:
        """Raise `Interrupted` if a stop signal has arrived; call this after step `step` has been saved.

        `number` is the signal on which ranks that learn together agreed, or 0; None: `stop_signal`.
        """
        number = self.stop_signal if number is None else number
        if number:
            name = signal.Signals(number).name
            raise Interrupted(
                f"stopped by {name} at step {step}, which is saved; continue with {resume_command(self.folder)}", number
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
        """Remove the run folder if it has no results; return whether the folder is removed."""
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
            if kind is None:  # else the first error is reported
                raise
        gone = kind is not None and self._clear()
        if kind is KeyboardInterrupt and error is not None:
            left = " before anything had finished; its folder is gone:" if gone else "; what had finished is in"
            raise Interrupted(f"interrupted{left} {self.folder}", *error.args[:1]) from None


def resume_command(folder: Path) -> str:
    """Return the command that resumes this run; only the command's options if the program is not robot-rl."""
    program, *words = sys.argv
    ours = Path(program).name in ("robot-rl", "main.py")
    words = words if ours else []
    words += [] if "--resume" in words else ["--resume"]
    words += [] if any(word.split("=")[0] == "--out" for word in words) else ["--out", str(folder)]
    return shlex.join(["robot-rl", *words] if ours else words)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the name of a file to an OSError, since errors of writes to an open file lack the name."""
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
    """Return the rows of metrics.jsonl without a line that a crash cut short."""
    rows, path = [], folder / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


Precision = Literal["highest", "high", "medium"]
MOST_THREADS = 4
"""Default maximum number of learner threads; small networks do not use more threads."""


def learner_threads(alone: bool) -> int:
    """Return torch's number of threads, at most `MOST_THREADS`; 1 beside a running simulation (`alone` is False)."""
    return min(MOST_THREADS, torch.get_num_threads()) if alone else 1


@contextmanager
def learning_floats(precision: Precision = "medium") -> Iterator[None]:
    """Set the float32 matmul precision and flush denormals to zero within the context; restore the settings on exit.

    Optimizer moments of weights without gradients decay to denormals, which take a fifth of an update's time.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_float32_matmul_precision(before)
