"""Close the gap between panda-lift in simulation and on the twin by identification, beside a control without it.

    python -m benchmarks.gap runs/gap

The twin, a simulated robot with hidden parameters and a tracker that is 2.3 cm off, is moved for a minute with a cube
in its hand (`excite`) and identified (`sysid`). Two policies are then trained with equal settings, from demonstrations
on: one on the task's own wide ranges, one on the identified ranges. Both are deployed on the twin for the same
episodes, without corrections. Stages that are done are not repeated. Results go to benchmarks/results/gap.json.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages, private_bus
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "gap.json"
PARTS = ("data", "clone", "improved", "twin")
KEYS = ("success", "success_low", "success_high", "steps_of_successes")


def main() -> int:
    """Run all stages of all seeds; return 1 if the floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=1, help="number of training seeds")
    parser.add_argument("--episodes", type=int, default=100, help="episodes on the twin")
    parser.add_argument("--demonstrations", type=int, default=15, help="demonstrations of each policy")
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of each improvement")
    options = parser.parse_args()
    private_bus()
    motion, stage = options.folder / "motion", Stages(options.folder)
    stage("excite", "excite", "panda", "--twin", "--hold", "cube", "--out", motion)
    ranges = motion / "ranges.json"
    stage("sysid", "sysid", motion)
    rows = []
    for seed in range(options.seeds):
        row: dict[str, Any] = {"seed": seed}
        for name, more in (("wide", []), ("identified", ["--randomization", ranges])):
            data, clone, policy, twin = (options.folder / str(seed) / name / part for part in PARTS)
            of = f"{name} {seed}"
            stage(f"collect {of}", "collect", "panda-lift", "--episodes", options.demonstrations, "--image-size", 0,
                  "--seed", seed, *more, "--out", data)  # fmt: skip
            learn = ["train", "panda-lift", "--dataset", data, "--seed", seed, *more]
            stage(f"clone {of}", "train", "panda-lift", "--dataset", data, "--seed", seed, "--recipe", "diffusion-bc",
                  "--out", clone)  # fmt: skip
            stage(f"improve {of}", *learn, "--recipe", "resfit", "--base", clone, "--training.steps", options.steps,
                  "--out", policy)  # fmt: skip
            stage(f"simulate {of}", "evaluate", policy, "--episodes", 200, *more, "--out", policy / "evaluation.json")
            stage(f"deploy {of}", "deploy", policy, "--twin", "--robot", "panda", "--episodes", options.episodes,
                  "--video-episodes", 0, "--out", twin)  # fmt: skip
            for where, folder in (("simulation", policy), ("twin", twin)):
                found = json.loads((folder / "evaluation.json").read_text())
                row[f"{name}_{where}"] = {key: found[key] for key in KEYS}
            sys.stderr.write(f"{of}: {row[f'{name}_simulation']} {row[f'{name}_twin']}\n")
        rows.append(row)
    result = {
        "ranges": json.loads(ranges.read_text()),
        "seconds": stage.seconds,
        "rows": rows,
        "provenance": provenance(),
    }
    write_json(RESULTS, result)
    met = all(
        row["identified_twin"]["success"] >= 0.8
        and row["identified_twin"]["success_low"] > row["wide_twin"]["success_high"]
        for row in rows
    )
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
