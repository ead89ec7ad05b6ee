"""Measure returns and minutes of the fast default recipe after 200,000 steps of four Gymnasium tasks.

    python -m benchmarks.fast_default --work /tmp/fast [--only HalfCheetah-v5] [--recipe sac] [--steps 20000]

Unfinished runs in --work are continued, finished runs kept. The curves, returns on held-out episodes, shares of
FlashSAC's published returns, minutes, machine and versions go to benchmarks/results/fast_default.json, by recipe and
task, once a task has run its 200,000 steps.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import robot_rl, thinned
from robot_rl.training.run import provenance, read_metrics, write_json
from robot_rl.util.seeds import evaluation_seed

RESULTS = Path(__file__).parent / "results" / "fast_default.json"
STEPS = 200_000
PUBLISHED = {"HalfCheetah-v5": 10_800.0, "Walker2d-v5": 5_300.0, "Ant-v5": 5_300.0, "Humanoid-v5": 9_600.0}
"""FlashSAC's mean returns after 200,000 steps (Kim et al. 2026, results in its repository, on version 4 of the
tasks)."""


def run(task: str, recipe: str, steps: int, seed: int, episodes: int, work: Path) -> dict[str, Any]:
    """Finish one run if necessary; return its curve, its evaluated return and its duration, minutes."""
    folder = work / f"{recipe}-{task}-{steps}-{seed}"
    result = folder / "evaluation.json"
    robot_rl("train", f"gym:{task}", "--recipe", recipe, "--training.steps", steps, "--seed", seed, "--threads", 1,
             "--out", folder, "--resume")  # fmt: skip
    first = evaluation_seed(steps >= STEPS)
    kept = json.loads(result.read_text()) if result.exists() else {}
    if (kept.get("episodes"), kept.get("seed")) != (episodes, first):
        size = ("--episodes", episodes, "--num-envs", episodes, "--seed", first)
        robot_rl("evaluate", folder, *size, "--threads", 1, "--out", result)
    rows = [(r["step"], r["seconds"], r["train/return"]) for r in read_metrics(folder) if "train/return" in r]
    found = json.loads(result.read_text())["return"]
    return {
        "seed": seed, "return": found, "share": found["mean"] / PUBLISHED[task], "minutes": rows[-1][1] / 60,
        "curve": {"columns": ["step", "seconds", "return"], "rows": thinned(rows)},
    }  # fmt: skip


def main() -> int:
    """Run the tasks and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="*", default=list(PUBLISHED), choices=list(PUBLISHED), help="tasks")
    parser.add_argument("--recipe", default="flash-sac", help="recipe")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps; fewer are not published")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each task")
    parser.add_argument("--episodes", type=int, default=20, help="episodes to evaluate")
    a = parser.parse_args()
    for task in a.only:
        runs = [run(task, a.recipe, a.steps, seed, a.episodes, a.work) for seed in range(a.seeds)]
        share, minutes = (sum(r[name] for r in runs) / len(runs) for name in ("share", "minutes"))
        sys.stdout.write(f"{a.recipe} {task}: {share:.0%} of {PUBLISHED[task]:.0f} in {minutes:.1f} minutes\n")
        if a.steps >= STEPS:
            kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            found = {"steps": a.steps, "published": PUBLISHED[task], "share": share, "minutes": minutes, "runs": runs}
            recipe = kept.get(a.recipe, {}) | {task: found | {"provenance": provenance()}}
            write_json(RESULTS, kept | {a.recipe: recipe})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
