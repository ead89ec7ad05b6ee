"""Measure the cost of few decisions: the frequency-averaged score (FAS) of policies that plan or hold actions.

    robot-rl train testbed:swing --recipe srl --training.steps 10000 --seeds 0..2 --out runs/srl
    robot-rl train testbed:swing --recipe sac --training.steps 10000 --seeds 0..2 --out runs/sac
    python -m benchmarks.decision_intervals runs/srl runs/sac

Each policy plays the same held-out episodes and decides at every 1st, 2nd, 4th, 8th and 16th control period; it
executes its planned actions, then holds the last one. The score is the area under return against interval, over the
range of intervals, where 0 is the return of random actions and 1 the best of the study (Patel and Siegelmann 2025,
arXiv 2410.08979). Results go to benchmarks/results/decision_intervals.json.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suites import first_episode
from policies.base import RandomPolicy, RunnablePolicy
from policies.bundle import load_bundle
from robot_rl.evaluation import ActionRepeat, evaluate
from robot_rl.training.run import provenance, seed_runs, write_json
from sim.make import make

RESULTS = Path(__file__).parent / "results" / "decision_intervals.json"
INTERVALS = (1, 2, 4, 8, 16)
"""Control periods between decisions."""


def score(returns: list[float], floor: float, best: float) -> float:
    """Return the frequency-averaged score of mean returns at `INTERVALS`."""
    normalized = (np.array(returns) - floor) / (best - floor)
    return float(np.trapezoid(normalized, INTERVALS) / (INTERVALS[-1] - INTERVALS[0]))


def mean_return(task: str, policy: RunnablePolicy, episodes: int, first: int) -> float:
    """Return the policy's mean return over episodes with seeds from `first` on."""
    env: Any = make(task, min(100, episodes))
    result = evaluate(policy, env, episodes, first)
    env.close()
    return statistics.fmean(result.returns)


def main() -> int:
    """Measure every policy at every interval; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, or folders of seed runs")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each policy and interval")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    arguments = parser.parse_args()
    for run in arguments.runs:
        if not run.is_dir():
            parser.error(f"{run} is no folder")
    bundles = [(run, seed) for run in arguments.runs for seed in seed_runs(run) or [run]]
    task, *others = {load_bundle(seed).task for _, seed in bundles}
    if others:
        parser.error(f"policies of several tasks are not comparable: {', '.join(sorted([task, *others]))}")
    env: Any = make(task, 1)
    size = arguments.episodes, first_episode(arguments.out, RESULTS)
    floor = mean_return(task, RandomPolicy(env.info.action, 1.0), *size)
    env.close()
    rows: list[dict[str, Any]] = []
    for run, seed in bundles:
        policy = load_bundle(seed).policy
        found = [mean_return(task, ActionRepeat(policy, interval), *size) for interval in INTERVALS]
        rows.append({"policy": run.name, "seed": seed.name, "returns": found})
    best = max(max(row["returns"]) for row in rows)
    if best <= floor:
        sys.stdout.write(f"no policy is better than random actions, whose return is {floor:.1f}\n")
        return 1
    for row in rows:
        row["score"] = score(row["returns"], floor, best)
        shown = " ".join(f"{value:9.1f}" for value in row["returns"])
        sys.stdout.write(f"{row['policy']:>8} {row['seed']:>8} {shown}   score {row['score']:.3f}\n")
    found = {"task": task, "intervals": INTERVALS, "floor": floor, "best": best, "episodes": arguments.episodes}
    write_json(arguments.out, found | {"rows": rows, "provenance": provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
