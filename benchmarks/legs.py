"""Train walks that no script gives, and walks on rough ground, and evaluate them in each engine without retraining.

    python -m benchmarks.legs runs/legs
    python -m benchmarks.legs runs/legs --only go2-rough --engines mujoco warp

Minutes are those of the whole `robot-rl train`. Stages that are done are not repeated. Results go to
benchmarks/results/legs.json. Rough ground in Genesis: benchmarks/genesis_ground.py.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "legs.json"
KEYS = (
    "episodes", "success", "success_low", "success_high", "velocity_error", "yaw_error", "foot_slip", "swing_height",
)  # fmt: skip
EPISODES = {"mujoco": 400, "warp": 100}
PUSHES = ("push.speed", "push.interval")


@dataclass(frozen=True)
class Floor:
    """Upper limits of a task's results."""

    error: float
    """Mean velocity error, m/s."""
    falls: float
    """Share of episodes with a fall."""
    minutes: float


FREE = ("--policy.initial-std", 0.5, "--training.steps", 6_600_000)
WAYS: dict[str, tuple[tuple[object, ...], Floor]] = {
    "go2-flat": (FREE, Floor(0.2, 0.03, 15)),
    "anymal-flat": (FREE, Floor(0.2, 0.03, 15)),
    "go2-rough": (("--policy.history", 5, "--training.steps", 13_200_000), Floor(0.25, 0.05, 40)),
}
"""Flags of `ppo` and floor of each task."""


def one(task: str, seed: int, folder: Path, engines: list[str]) -> dict[str, Any]:
    """Train one seed; return its minutes and its results with and without pushes."""
    stage, run = Stages(folder), folder / "walk"
    stage("train", "train", task, "--recipe", "ppo", *WAYS[task][0], "--seed", seed, "--out", run)
    row: dict[str, Any] = {"task": task, "seed": seed, "minutes": round(stage.seconds["train"] / 60, 1)}
    for engine in engines:
        for pushed in (True, False):
            name = engine if pushed else f"{engine} without pushes"
            out, without = folder / f"{name}.json".replace(" ", "-"), () if pushed else ("--without", *PUSHES)
            count = ("--episodes", EPISODES[engine], "--num-envs", 100)
            stage(name, "evaluate", run, "--engine", engine, *count, *without, "--out", out)
            found = json.loads(out.read_text())
            row[name] = {key: found[key] for key in (*KEYS, "by_ground") if key in found}
    return row


def main() -> int:
    """Run all stages; return 1 if a task misses its floor in MuJoCo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="tasks")
    parser.add_argument("--engines", nargs="+", choices=EPISODES, default=["mujoco"], help="engines to evaluate in")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    options = parser.parse_args()
    rows = [
        one(task, seed, options.folder / task / str(seed), options.engines)
        for task in options.only
        for seed in range(options.seeds)
    ]
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    kept = [row for row in kept if row["task"] not in options.only]
    write_json(RESULTS, {"rows": kept + rows, "provenance": provenance()})
    missed = False
    for row in rows:
        for name, r in row.items():
            if isinstance(r, dict):
                error = "{mean:.3f} [{low:.3f}, {high:.3f}] m/s".format(**r["velocity_error"])
                falls = f"falls {1 - r['success']:.3f} [{1 - r['success_high']:.3f}, {1 - r['success_low']:.3f}]"
                sys.stdout.write(f"{row['task']:12} {row['seed']}  {name:24} {error}  {falls}\n")
        floor, found = WAYS[row["task"]][1], row.get("mujoco")
        sys.stdout.write(f"{row['task']:12} {row['seed']}  trained in {row['minutes']} minutes\n")
        if found:
            missed |= found["velocity_error"]["mean"] > floor.error or 1 - found["success"] > floor.falls
        missed |= row["minutes"] > floor.minutes
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
