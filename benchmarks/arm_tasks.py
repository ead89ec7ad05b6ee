"""Train each manipulation task the whole way: demonstrations, clone, improvement, 200 held-out episodes of both.

    python -m benchmarks.arm_tasks runs/arms
    python -m benchmarks.arm_tasks runs/arms --only panda-drawer panda-insert --seeds 3

Minutes count from the first demonstration to the improved policy, without evaluations. Stages that are done are not
repeated. Results go to benchmarks/results/arm_tasks.json. The floor: the better policy's lower bound is at least 0.90.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "arm_tasks.json"
FLOOR = 0.9
KEYS = ("success", "success_low", "success_high", "steps_of_successes")


@dataclass(frozen=True)
class Way:
    """How a task is trained."""

    demonstrations: int
    skill: str
    improve: tuple[Any, ...] | None = ("--training.stop-at", 0.99)
    """Flags of `resfit`; None: the clone is not improved."""
    clone: tuple[Any, ...] = ()
    """Flags of `diffusion-bc`."""


FINE = ("--residual.scale", 0.2, "--agent.discount", 0.99, "--training.steps", 80_000, "--training.stop-at", 0.99)
"""Small corrections, for tasks of a millimetre, and a discount for episodes of more than 100 periods."""
WAYS = {
    "panda-drawer": Way(20, "CLUMSY"),
    "panda-place": Way(20, "CLUMSY"),
    "panda-stack": Way(50, "STEADY", None),
    "panda-insert": Way(50, "STEADY", FINE),
    "panda-push": Way(80, "STEADY", FINE),
}


def one(task: str, way: Way, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed; return both policies' results and the minutes to each."""
    stage, data, clone, improved = Stages(folder), folder / "data", folder / "clone", folder / "improved"
    collect = ["collect", task, "--episodes", way.demonstrations, "--skill", way.skill, "--image-size", 0]
    learn = ["train", task, "--dataset", data, "--seed", seed]
    stage("collect", *collect, "--seed", seed, "--out", data)
    stage("clone", *learn, "--recipe", "diffusion-bc", *way.clone, "--out", clone)
    if way.improve is not None:
        stage("improve", *learn, "--recipe", "resfit", "--base", clone, *way.improve, "--out", improved)
    row: dict[str, Any] = {"task": task, "seed": seed, "demonstrations": way.demonstrations, "skill": way.skill}
    minutes = 0.0
    for name, run, stages in (("clone", clone, ("collect", "clone")), ("improved", improved, ("improve",))):
        minutes += sum(stage.seconds.get(each, 0.0) for each in stages) / 60
        if run.exists():
            stage(f"evaluate {name}", "evaluate", run, "--episodes", 200)
            found = json.loads((run / "evaluation.json").read_text())
            row[name] = {key: found[key] for key in KEYS} | {"minutes": round(minutes, 1)}
    return row


def main() -> int:
    """Run all stages; return 1 if a task misses the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), help="tasks")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    options = parser.parse_args()
    rows = [
        one(task, WAYS[task], seed, options.folder / task / str(seed))
        for task in options.only
        for seed in range(options.seeds)
    ]
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    kept = [row for row in kept if row["task"] not in options.only]
    write_json(RESULTS, {"episodes": 200, "rows": kept + rows, "provenance": provenance()})
    missed = False
    for row in rows:
        policies = {name: row[name] for name in ("clone", "improved") if name in row}
        best = max(policies, key=lambda name: policies[name]["success"])
        for name, r in policies.items():
            interval = "{success:.3f} [{success_low:.3f}, {success_high:.3f}]".format(**r)
            sys.stdout.write(f"{row['task']:14} {row['seed']}  {name:9} {interval}  {r['minutes']} minutes\n")
        missed |= policies[best]["success_low"] < FLOOR
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
