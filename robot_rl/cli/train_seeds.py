"""`robot-rl train --seeds`: one run per seed, in sequence, and one table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robot_rl.cli.console import learned, show_runs
from robot_rl.training.metrics import Diverged
from robot_rl.training.run import MAY_DIFFER, SEED, has_ended, read_metrics
from robot_rl.util.errors import ConfigError, Interrupted
from robot_rl.util.settings import as_json


def train_seeds(command: Any, folder: Path, seeds: Sequence[int], without: Sequence[str]) -> int:
    """Train the command's recipe with each seed in `folder`/seed-<seed>; return the exit status.

    With --resume, finished runs are skipped; without it, an existing run raises ConfigError before any training. A seed
    that diverges appears in the table with its error, and the next seed continues.
    """
    if (folder / "config.json").exists():
        raise ConfigError(f"{folder} is a run itself; choose another --out for runs of several seeds")
    runs = {seed: folder / f"{SEED}{seed}" for seed in seeds}
    held = [run for run in runs.values() if (run / "config.json").exists()]
    if held and not command.resume:
        raise ConfigError(f"{held[0]} holds a run already; continue with --resume or choose another --out")
    rows: list[dict[str, Any]] = []
    for seed, run in runs.items():
        if command.resume and has_ended(run) and _as_before(command, run, seed, without):
            metrics = read_metrics(run)
            took = {"seconds": metrics[-1]["seconds"]} if metrics else {}
            rows.append({"run": str(run), "seed": seed} | took | learned(metrics))
            continue
        print(f"seed {seed}, {len(rows) + 1} of {len(runs)}: {run}", file=sys.stderr)  # noqa: T201
        try:
            result = command.train(run, seed, without)
        except Diverged as error:
            rows.append({"run": str(run), "seed": seed, "error": str(error)})
            continue
        except Interrupted as error:
            more = f"continue all seeds with --seeds {command.seeds} --resume --out {folder}"
            raise Interrupted(f"seed {seed} {str(error).partition(';')[0]}; {more}", error.code - 128) from None
        rows.append({"run": result.pop("run"), "seed": seed} | {k: v for k, v in result.items() if k != "bundle"})
    show_runs(rows, command.json, command.recipe, {"out": str(folder)})
    return int(any("error" in row for row in rows))


def _as_before(command: Any, run: Path, seed: int, without: Sequence[str]) -> bool:
    """Return whether a run has the command's settings; otherwise `Run` extends the run or refuses."""
    try:
        before = json.loads((run / "config.json").read_bytes())
        now = as_json(command.read_as(before, command.settings(seed, without)))
        return all(before.get(name) == now[name] for name in now.keys() - MAY_DIFFER)
    except (OSError, ValueError, AttributeError):
        return False
