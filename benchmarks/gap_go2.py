"""Walk on the twin of a Go2 after training on identified ranges, beside training on the task's own wide ranges.

    python -m benchmarks.gap_go2 runs/gap-go2

The twin's legs are excited in the air for a minute (`excite --hung`) and identified (`sysid`). Two policies are trained
with equal settings and deployed on the twin with the same commands. Stages that are done are not repeated. Results go
to benchmarks/results/gap_go2.json.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.suites import Stages, private_bus
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "gap_go2.json"
KEYS = ("episodes", "steps", "success", "falls", "fall_rate_low", "fall_rate_high", "velocity_error", "yaw_error")


def main() -> int:
    """Run all stages; return 1 if identified ranges give a larger error or more falls than wide ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--episodes", type=int, default=12, help="episodes of 60 s on the twin")
    options = parser.parse_args()
    private_bus()
    log, stage = options.folder / "log", Stages(options.folder)
    stage("excite", "excite", "go2", "--twin", "--hung", "--out", log)
    stage("sysid", "sysid", log)
    row: dict[str, Any] = {}
    for name, more in (("identified", ["--randomization", log / "ranges.json"]), ("wide", [])):
        walk, twin = options.folder / name, options.folder / f"twin-{name}"
        stage(f"train {name}", "train", "go2-velocity", "--recipe", "ppo", *more, "--out", walk)
        stage(f"deploy {name}", "deploy", walk, "--twin", "--robot", "go2", "--episodes", options.episodes,
              "--seconds", 60, "--commands", "schedule", "--video-episodes", 0, "--out", twin)  # fmt: skip
        found = json.loads((twin / "evaluation.json").read_text())
        row[name] = {key: found[key] for key in KEYS}
    ranges = json.loads((log / "ranges.json").read_text())
    write_json(RESULTS, {"ranges": ranges, "seconds": stage.seconds, "twin": row, "provenance": provenance()})
    sys.stdout.write(json.dumps(row, indent=1) + "\n")
    better = row["identified"]["velocity_error"]["mean"] <= row["wide"]["velocity_error"]["mean"]
    return 0 if better and row["identified"]["falls"] <= row["wide"]["falls"] else 1


if __name__ == "__main__":
    sys.exit(main())
