"""Measure panda-lift from two cameras with randomized appearance: a clone, and the clone improved by `resfit`.

    python -m benchmarks.panda_lift_cameras --seeds 1 --work runs/cameras

Each seed collects, clones and improves by the commands a user would type, then plays both policies on the same
held-out episodes. Finished stages in --work are not run again. Results, with the duration of each stage, s, go to
benchmarks/results/panda_lift_cameras.json.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages, first_episode, robot_rl
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "panda_lift_cameras.json"
TASK = "panda-lift-cameras"
KEYS = ("success", "success_low", "success_high", "steps_of_successes")


def one_seed(seed: int, folder: Path, episodes: int, first: int) -> dict[str, Any]:
    """Run the stages of one seed; return the duration of each stage, s, and the evaluations of both policies."""
    stages, data, clone, better = Stages(folder), folder / "data", folder / "clone", folder / "improved"
    train = ["train", TASK, "--dataset", data, "--seed", seed, "--resume"]
    commands: dict[str, list[object]] = {
        "collect": ["collect", TASK, "--skill", "STEADY", "--episodes", 300, "--num-envs", 25, "--seed", seed,
                    "--out", data, "--resume"],
        "clone": [*train, "--recipe", "diffusion-bc", "--training.batch", 128, "--training.updates", 3000,
                  "--out", clone],
        "improve": [*train, "--recipe", "resfit", "--base", clone, "--training.steps", 100_000, "--out", better],
    }  # fmt: skip
    for name, words in commands.items():
        stages(name, *words)
    found: dict[str, Any] = {"seed": seed, "seconds": stages.seconds, "minutes": sum(stages.seconds.values()) / 60}
    for name, run in (("cloned", clone), ("improved", better)):
        robot_rl("evaluate", run, "--episodes", episodes, "--seed", first)
        result = json.loads((run / "evaluation.json").read_text())
        found[name] = {key: result[key] for key in KEYS}
    return found


def main() -> int:
    """Run the seeds and write the table; return 1 if a threshold is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes of each policy")
    parser.add_argument("--work", type=Path, default=Path("runs/panda-lift-cameras"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    rows, first = [], first_episode(a.out, RESULTS)
    for seed in range(a.first, a.first + a.seeds):
        rows.append(one_seed(seed, a.work / f"seed-{seed}", a.episodes, first))
        row, line = rows[-1], "{success:.3f} [{success_low:.3f}, {success_high:.3f}]"
        sys.stdout.write(f"seed {seed}: {line.format(**row['cloned'])} to {line.format(**row['improved'])}")
        sys.stdout.write(f" after {row['minutes']:.1f} minutes\n")
        write_json(a.out, {"task": TASK, "episodes": a.episodes, "rows": rows, "provenance": provenance()})
    good = all(
        r["improved"]["success_low"] >= max(0.8, r["cloned"]["success_high"]) and r["minutes"] <= 40 for r in rows
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
