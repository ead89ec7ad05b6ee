"""Measure learning curves of sac and rlpd, and the learned policies on held-out episodes.

    python -m benchmarks.learning --work /tmp/learning [--only rlpd-cheetah]

The prior data of rlpd are 10 episodes of the task's sac policy on Gymnasium tasks, and 50 demonstrations on panda-lift.
Finished cases in --work are not run again. Curves, evaluations, machine and versions go to
benchmarks/results/learning.json.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.training.run import provenance, read_metrics, write_json

RESULTS = Path(__file__).parent / "results" / "learning.json"
POINTS = 40
"""Maximum number of points of a curve, besides the last point."""


@dataclass(frozen=True)
class Case:
    """One training run; `data` are the options of `collect` for its dataset, in which WORK stands for --work."""

    task: str
    recipe: str
    options: str
    data: str = ""
    episodes: int = 20


GYM = "--training.reward task --training.demos all --agent.initial-temperature 0.1"
EVALUATED = ("episodes", "success", "success_low", "success_high", "return")
CASES = {
    "sac-pendulum": Case("gym:Pendulum-v1", "sac", "--training.steps 10000", episodes=50),
    "rlpd-pendulum": Case(
        "gym:Pendulum-v1", "rlpd", f"--training.steps 4000 {GYM}", "--policy WORK/sac-pendulum --episodes 10", 50
    ),
    "sac-cheetah": Case("gym:HalfCheetah-v5", "sac", "--training.steps 60000"),
    "rlpd-cheetah": Case(
        "gym:HalfCheetah-v5", "rlpd", f"--training.steps 15000 {GYM}", "--policy WORK/sac-cheetah --episodes 10"
    ),
    "rlpd-panda": Case(
        "panda-lift",
        "rlpd",
        "--training.steps 80000 --training.num-envs 32 --training.updates-per-step 0.5 --agent.n-step 3 "
        "--agent.discount 0.98",
        "--episodes 50 --image-size 0",
        200,
    ),
}


def robot_rl(*words: str) -> None:
    """Run a command as a user would; an error ends the benchmark."""
    subprocess.run([sys.executable, "-m", "robot_rl.cli.main", *words], check=True)


def run(name: str, case: Case, work: Path) -> dict[str, Any]:
    """Return the curve and the evaluation of one case, after running the stages that are missing."""
    folder, data = work / name, work / f"{name}-data"
    words = case.options.split()
    if case.data:
        words += ["--dataset", str(data)]
    if not (folder / "bundle").exists():
        if case.data and not data.exists():
            robot_rl("collect", case.task, *case.data.replace("WORK", str(work)).split(), "--out", str(data))
        robot_rl("train", case.task, "--recipe", case.recipe, *words, "--out", str(folder))
    result = folder / "evaluation.json"
    if not result.exists():
        side_by_side = str(min(case.episodes, 50))
        robot_rl("evaluate", str(folder), "--episodes", str(case.episodes), "--num-envs", side_by_side,
                 "--out", str(result))  # fmt: skip
    measure = "train/success" if case.task == "panda-lift" else "train/return"
    rows = [(r["step"], r["seconds"], r[measure]) for r in read_metrics(folder) if r.get(measure) is not None]
    found = json.loads(result.read_text())
    return {
        "task": case.task, "recipe": case.recipe, "options": case.options, "data": case.data,
        "curve": {"columns": ["step", "seconds", measure], "rows": rows[:: -(-len(rows) // POINTS)] + rows[-1:]},
        "evaluation": {k: found[k] for k in EVALUATED if k in found},
    }  # fmt: skip


def main() -> int:
    """Run the cases and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES), help="cases")
    arguments = parser.parse_args()
    kept = json.loads(RESULTS.read_text())["cases"] if RESULTS.exists() else {}
    for name in arguments.only:
        kept[name] = run(name, CASES[name], arguments.work)
        write_json(RESULTS, {"cases": kept, "provenance": provenance()})
        sys.stdout.write(f"{name}: {json.dumps(kept[name]['evaluation'])}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
