"""Several seeds of one `robot-rl train`: one after another here, or at once on the nodes of a Ray cluster."""

import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from robot_rl.cli.console import bar, learned, show_runs
from robot_rl.training.metrics import Diverged
from robot_rl.training.run import MAY_DIFFER, SEED, has_ended, read_metrics
from robot_rl.util.errors import ConfigError, Interrupted
from robot_rl.util.seeds import seed_list
from robot_rl.util.settings import as_json

_INPUTS = ("dataset", "base", "classifier", "reward", "mjcf", "randomization")
"""Options that name a file or folder."""
_OWN = ("seeds", "seed", "ray", "out", "resume", "json", "task", "threads", *_INPUTS)
"""Options that the command of one seed gets anew."""


def train_seeds(command: Any, folder: Path, seeds: Sequence[int], without: Sequence[str]) -> int:
    """Train the command's recipe with each seed in `folder`/seed-<seed>; return the exit status.

    With --resume, finished runs are skipped. Without --resume, an existing run raises ConfigError before any training.
    A seed that diverges appears in the table with its error, and training continues with the next seed.
    """
    if (folder / "config.json").exists():
        raise ConfigError(f"{folder} is a run itself; choose another --out for runs of several seeds")
    runs = {seed: folder / f"{SEED}{seed}" for seed in seeds}
    held = [run for run in runs.values() if (run / "config.json").exists()]
    if held and not command.resume:
        raise ConfigError(f"{held[0]} holds a run already; continue with --resume or choose another --out")
    left = {seed: run for seed, run in runs.items() if not _finished(command, run, seed, without)}
    train = _train_on_cluster if command.ray else _train_here
    trained = train(command, left, without, f"continue all seeds with --seeds {command.seeds} --resume --out {folder}")
    rows = [{"run": str(run), "seed": seed} | (trained.get(seed) or _result(run)) for seed, run in runs.items()]
    show_runs(rows, command.json, command.recipe, {"out": str(folder)})
    return int(any("error" in row for row in rows))


def _result(run: Path) -> dict[str, Any]:
    """Return what the table shows of a finished run."""
    metrics = read_metrics(run)
    return ({"seconds": metrics[-1]["seconds"]} if metrics else {}) | learned(metrics)


def _train_here(command: Any, runs: dict[int, Path], without: Sequence[str], remedy: str) -> dict[int, dict[str, Any]]:
    """Train seeds one after another; return each seed's result, or its error if it diverged."""
    results: dict[int, dict[str, Any]] = {}
    seeds = seed_list(command.seeds)
    for seed, run in runs.items():
        print(f"seed {seed}, {seeds.index(seed) + 1} of {len(seeds)}: {run}", file=sys.stderr)  # noqa: T201
        try:
            result = command.train(run, seed, without)
            results[seed] = {name: value for name, value in result.items() if name not in ("run", "bundle")}
        except Diverged as error:
            results[seed] = {"error": str(error)}
        except Interrupted as error:
            raise Interrupted(f"seed {seed} {str(error).partition(';')[0]}; {remedy}", error.code - 128) from None
    return results


def _train_on_cluster(
    command: Any, runs: dict[int, Path], without: Sequence[str], remedy: str
) -> dict[int, dict[str, Any]]:  # fmt: skip
    """Train seeds on the nodes of a Ray cluster, as many at once as there is room for; return the errors by seed."""
    from robot_rl.bench.methods import interrupted_by_signals
    from robot_rl.cluster.remote import Cluster, RemoteCommand

    threads, stopped = command.settings(0, without)["threads"], threading.Event()
    gpus = float(command.device.startswith("cuda"))
    inputs = {name: Path(value).resolve() for name in _INPUTS if (value := getattr(command, name))}
    if "demonstrations" in command.config.needs:
        inputs["dataset"] = Path(command.settings(0, without)["dataset"])
    for name, path in inputs.items():
        if not path.exists():
            raise ConfigError(f"--{name} {path} does not exist")
    cluster = Cluster(command.ray)
    cluster.require_room(threads, gpus)
    number = [0]

    def train(seed: int) -> tuple[int, str]:
        run = runs[seed]
        run.mkdir(parents=True, exist_ok=True)

        def words() -> list[str]:
            own = {"seed": seed, "threads": threads, "out": run.resolve(), **inputs}
            given = [word for name, value in own.items() for word in (f"--{name}", str(value))]
            given += ["--resume"] if (run / "config.json").exists() else []
            others = _others(command.words, command.task)
            return ["-m", "robot_rl.cli.main", "train", command.task, *others, *given]

        remote = RemoteCommand(cluster, words, run, list(inputs.values()), cpus=threads, gpus=gpus)
        return remote.run(lambda: number[0], stopped.wait)

    errors: dict[int, dict[str, Any]] = {}
    with bar(command.recipe) as update, ThreadPoolExecutor(len(runs) or 1) as pool, interrupted_by_signals():
        jobs = {pool.submit(train, seed): seed for seed in runs}
        try:
            while not all(job.done() for job in jobs):
                steps = {seed: int(rows[-1]["step"]) for seed, run in runs.items() if (rows := read_metrics(run))}
                ended = sum(job.done() for job in jobs)
                update(ended, len(jobs), "steps " + ", ".join(f"{k}: {v}" for k, v in steps.items()))
                stopped.wait(1.0)
        except KeyboardInterrupt as interrupt:
            number[0] = interrupt.args[0] if interrupt.args else 2
        for job in as_completed(jobs):
            status, said = job.result()
            if status and not number[0]:
                errors[jobs[job]] = {"error": said.removeprefix("robot-rl: ")}
    cluster.close()
    if number[0]:
        raise Interrupted(f"the seeds' checkpoints are here; {remedy}", number[0])
    return errors


def _others(words: Sequence[str], task: str) -> list[str]:
    """Return the words of a command line without the task and the options `_OWN`."""
    kept: list[str] = []
    skip = False
    for word in words:
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            skip = name in _OWN and name not in ("resume", "json") and "=" not in word
            if name not in _OWN:
                kept.append(word)
        elif skip:
            skip = False
        elif word != task:
            kept.append(word)
    return kept


def _finished(command: Any, run: Path, seed: int, without: Sequence[str]) -> bool:
    """Return whether a seed's run has ended with the command's settings. If the settings differ, `Run` extends the run
    or refuses to continue it."""
    if not command.resume or not has_ended(run):
        return False
    try:
        before = json.loads((run / "config.json").read_bytes())
        now = as_json(command.read_as(before, command.settings(seed, without)))
        return all(before.get(name) == now[name] for name in now.keys() - MAY_DIFFER)
    except (OSError, ValueError, AttributeError):
        return False
