"""Measure what practice makes of one supervised start: the small vision-language-action policy on the tabletop.

    python -m benchmarks.vla_practice --work runs/practice [--only vla-rl srpo] [--seeds 3]

`vla-rl`, `srpo` and `grape` begin with a policy that writes tokens, `dsrl` and `resfit` with one that flows, both
cloned from the same demonstrations. Each method practises the same instructions for the same number of environment
steps. Stages that --work holds are not run again. Results go to benchmarks/results/vla_practice.json. Passed: three
methods or more whose interval lies above that of their start.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.panda_lift_cameras import Stages
from benchmarks.suites import robot_rl
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import wilson

RESULTS = Path(__file__).parent / "results" / "vla_practice.json"
ENVS = 64
STARTS = {"tokens": "vla-tokens", "flow": "vla-sft"}
"""Recipe of each start."""
METHODS = {"vla-rl": "tokens", "srpo": "tokens", "grape": "tokens", "dsrl": "flow", "resfit": "flow"}
"""The start of each method."""


def options(method: str, steps: int, horizon: int, data: Path) -> tuple[object, ...]:
    """Return a method's options for so many environment steps."""
    if method in ("srpo", "grape"):  # their rounds are whole episodes, most of which end before the horizon
        return ("--training.num-envs", ENVS, "--training.rounds", round(steps / (0.75 * horizon * ENVS)))
    few = ("--training.num-envs", ENVS) if method == "vla-rl" else ()
    return ("--training.steps", steps, *few, *(("--dataset", data) if method == "resfit" else ()))


def success(run: Path, instructions: str, episodes: int) -> tuple[int, int]:
    """Return the successes and the episodes of a policy, after measuring it if that is missing."""
    out = run / "practised.json"
    if not out.exists():
        words = ("--instructions", instructions, "--episodes", episodes, "--num-envs", min(episodes, 100))
        robot_rl("evaluate", run, *words, "--out", out)
    found = json.loads(out.read_text())
    return round(found["success"] * found["episodes"]), found["episodes"]


def interval(counts: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the success of all seeds together, with its 95 % interval, and that of each."""
    won, count = sum(w for w, _ in counts), sum(n for _, n in counts)
    low, high = wilson(won, count)
    rates = [w / n for w, n in counts]
    return {"success": won / count, "success_low": low, "success_high": high, "episodes": count, "seeds": rates}


def main() -> int:
    """Run the stages and write the table; return 1 if fewer than three methods beat their start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/practice"), help="folder of the runs")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), help="methods")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of each method")
    parser.add_argument("--instructions", default="lift", help="what is practised and asked")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of practice")
    parser.add_argument("--demonstrations", type=int, default=1000, help="episodes of the demonstrator")
    parser.add_argument("--updates", type=int, default=2500, help="gradient steps of each start")
    parser.add_argument("--episodes", type=int, default=200, help="held-out episodes of each policy")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    stages, data, methods = Stages(a.work), a.work / "data", {}
    words = ("--episodes", a.demonstrations, "--num-envs", 25, "--skill", "STEADY", "--seed", 0)
    stages("collect", "collect", "tabletop", *words, "--out", data, "--resume")
    starts = {}
    for kind in {METHODS[method] for method in a.only}:
        words = ("--recipe", STARTS[kind], "--dataset", data, "--training.updates", a.updates, "--seed", 0)
        stages(kind, "train", "tabletop", *words, "--out", a.work / kind, "--resume")
        starts[kind] = interval([success(a.work / kind, a.instructions, a.episodes)])
    for method in a.only:
        start, counts = METHODS[method], []
        for seed in range(a.seeds):
            run = a.work / f"{method}-{seed}"
            words = ("--recipe", method, "--base", a.work / start, "--instructions", a.instructions, "--seed", seed)
            how = options(method, a.steps, 160, data)
            stages(run.name, "train", "tabletop", *words, *how, "--out", run, "--resume")
            counts.append(success(run, a.instructions, a.episodes))
        found = interval(counts) | {"start": start, "above": None}
        found["above"] = found["success_low"] > starts[start]["success_high"]
        methods[method] = found
        sys.stdout.write(f"{method}: {starts[start]['success']:.2f} to {found['success']:.2f}\n")
        told = vars(a) | {"work": "", "out": ""}
        result = {"options": told, "seconds": stages.seconds, "starts": starts, "methods": methods}
        write_json(a.out, result | {"provenance": provenance()})
    return int(sum(found["above"] for found in methods.values()) < 3)


if __name__ == "__main__":
    sys.exit(main())
