"""Close the gap between panda-lift in simulation and on the twin by identification, beside a control without it.

    python -m benchmarks.gap runs/gap

The twin, a simulated robot with hidden parameters and a tracker that is 2.3 cm off, is moved for a minute with a cube
in its hand (`excite`) and identified (`sysid`). One cloned policy is then improved twice with equal settings: once on
the task's own wide ranges, once on the identified ranges. Both are deployed on the twin for the same episodes, without
corrections. Stages that are done are not repeated. Results go to benchmarks/results/gap.json.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "gap.json"
KEYS = ("success", "success_low", "success_high", "steps_of_successes")


def main() -> int:
    """Run all stages of all seeds; return 1 if the floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=1, help="number of training seeds")
    parser.add_argument("--episodes", type=int, default=100, help="episodes on the twin")
    parser.add_argument("--steps", type=int, default=40_000, help="environment steps of each improvement")
    options = parser.parse_args()
    motion, stage = options.folder / "motion", Stages(options.folder)
    stage("excite", "excite", "panda", "--twin", "--hold", "cube", "--out", motion)
    ranges = motion / "ranges.json"
    stage("sysid", "sysid", motion)
    rows = []
    for seed in range(options.seeds):
        run = options.folder / str(seed)
        data, clone = run / "data", run / "clone"
        stage(f"collect {seed}", "collect", "panda-lift", "--episodes", 15, "--image-size", 0,
              "--seed", seed, "--out", data)  # fmt: skip
        learn = ["train", "panda-lift", "--dataset", data, "--seed", seed]
        stage(f"clone {seed}", *learn, "--recipe", "diffusion-bc", "--out", clone)
        improve = [*learn, "--recipe", "resfit", "--base", clone, "--training.steps", options.steps]
        row: dict[str, Any] = {"seed": seed}
        for name, more in (("wide", []), ("identified", ["--randomization", ranges])):
            policy, out = run / name, run / f"{name}-twin"
            stage(f"train {name} {seed}", *improve, *more, "--out", policy)
            stage(f"simulate {name} {seed}", "evaluate", policy, "--episodes", 200, *more)
            stage(f"deploy {name} {seed}", "deploy", policy, "--twin", "--robot", "panda",
                  "--episodes", options.episodes, "--video-episodes", 0, "--out", out)  # fmt: skip
            for where, file in (("simulation", policy), ("twin", out)):
                found = json.loads((file / "evaluation.json").read_text())
                row[f"{name}_{where}"] = {key: found[key] for key in KEYS}
            sys.stderr.write(f"{name}: {row[f'{name}_simulation']} {row[f'{name}_twin']}\n")
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
