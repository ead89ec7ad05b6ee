"""What slow inference costs, and what chunks executed beside it give back: panda-lift in simulation.

    robot-rl collect panda-lift
    robot-rl train panda-lift --recipe diffusion-bc --out runs/diffusion
    robot-rl train panda-lift --recipe flow-bc --out runs/flow
    python -m benchmarks.inference_delay runs/diffusion runs/flow

Every policy meets the same held-out episodes with every execution at every delay, so differences are paired. Results go
to benchmarks/results/inference_delay.json, and stand in docs/deploy.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch

from policies.bundle import Bundle, load_bundle
from policies.execution import Execution, Mode
from robot_rl.evaluation import evaluate, mean_interval
from robot_rl.training.run import provenance, write_json
from sim.env import TaskEnv

RESULTS = Path(__file__).parent / "results" / "inference_delay.json"
MODES: tuple[Mode, ...] = ("receding", "asynchronous", "realtime", "ensemble")
DELAYS = (0, 50, 150, 300)
"""ms"""


def measure(bundle: Bundle, mode: Mode, delay: int, episodes: int) -> tuple[dict[str, Any], list[bool]]:
    """Return the figures of one cell, and which episodes succeeded."""
    env = TaskEnv(bundle.task, min(100, episodes))
    periods = math.ceil(delay * env.rate / 1000)
    result = evaluate(bundle.policy, env, episodes, execution=Execution(mode, periods))
    env.close()
    keys = ("episodes", "success", "success_low", "success_high", "steps_of_successes", "action_change", "held_share")
    summary = result.summary()
    return {"execution": mode, "delay_ms": delay} | {k: summary[k] for k in keys if k in summary}, result.success


def study(path: Path, episodes: int) -> list[dict[str, Any]]:
    """Return the rows of one policy; `gain` is the paired difference from stopping and waiting at the same delay."""
    bundle, rows = load_bundle(path), []
    for delay in DELAYS:
        waited: list[bool] = []
        for mode in MODES:
            row, success = measure(bundle, mode, delay, episodes)
            waited = waited or success
            gain = mean_interval([float(a) - float(b) for a, b in zip(success, waited, strict=True)])
            rows.append({"policy": bundle.policy.class_name} | row | {"gain": gain})
            line = (
                "{policy:>10} {execution:>13} {delay_ms:4d} ms  {success:.3f} [{success_low:.3f}, {success_high:.3f}]"
            )
            change = "  gain {mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**gain)
            sys.stdout.write(line.format(**rows[-1]) + change + f"  change {row['action_change']:.3f}\n")
            sys.stdout.flush()
    return rows


def main() -> int:
    """Study every policy and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of diffusion-bc and flow-bc")
    parser.add_argument("--episodes", type=int, default=200, help="held-out episodes of each cell")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for path in arguments.runs for row in study(path, arguments.episodes)]
    write_json(RESULTS, {"task": "panda-lift", "rows": rows, "provenance": provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
