"""Run a walking policy on the twin. Each run has its own commands, noise, pushes, directions of sensor bias and DDS
domain. The robot's dynamics, at or beyond the edge of training, are always the same.

    python -m benchmarks.go2_twin runs/walk --runs 20 --seconds 60 --jobs 2

Each run is a `robot-rl launch quadruped` with pushes. Results go to benchmarks/results/go2_twin.json with machine,
versions and commit. On two busy cores, two jobs delay each other: states become stale and runs are stopped.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.suites import first_episode
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import mean_interval, wilson

RESULTS = Path(__file__).parent / "results" / "go2_twin.json"
TASK = "go2-velocity"
SPREAD = 10
"""Difference between the first episode seeds of successive runs, so that runs of several episodes share no seeds."""
FIRST_DOMAIN, DOMAINS = 100, 100
ERRORS = ("velocity_error", "yaw_error")
"""Tracking errors in the results, m/s and rad/s."""
STANDING = 0.95
"""Minimum share of runs that end standing."""


def one_run(
    index: int, bundle: Path, folder: Path, seconds: float, push_every: float, domain: int, first: int
) -> dict[str, Any]:
    """Walk for one episode and return its results. If a process failed, return only the seed and the exit status."""
    out = folder / str(index)
    values = {
        "robot": "go2", "twin": "true", "task": TASK, "policy": bundle, "out": out, "episodes": 1, "seconds": seconds,
        "push_every": push_every, "seed": index, "first_episode": first + SPREAD * index,
        "domain_id": FIRST_DOMAIN + (domain + index) % DOMAINS,
    }  # fmt: skip
    command = [sys.executable, "-m", "robot_rl.cli.main", "launch", "quadruped"]
    command += [f"{name}:={value}" for name, value in values.items()]
    environment = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"} | os.environ
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    row: dict[str, Any] = {"seed": index, "status": done.returncode}
    if done.returncode or not (out / "evaluation.json").is_file():
        sys.stderr.write(f"run {index} failed with status {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}\n")
        return row | {"status": done.returncode or 1}
    seen, loop = (json.loads((out / f"{name}.json").read_text()) for name in ("evaluation", "loop"))
    row |= {"falls": seen["falls"], "standing": seen["standing"] == 1}
    row["stopped"] = "" if row["standing"] else seen["stopped"]
    row |= {"seconds": seen["steps"] / 50, "action_change": seen["action_change"]}
    row |= {name: seen[name]["mean"] for name in ERRORS}
    row |= {"late_share": loop["late_share"], "inference_p99_ms": loop["inference_ms"]["p99"]}
    guard = re.search(r"\[guard\].*; damped: (\{.*\})", done.stdout)
    # The guard always falls back to damping once, when the commands end with the run.
    damped = Counter(json.loads(guard[1])) if guard else Counter(unknown=1)
    row["fell_lying_down"] = row["standing"] and "tilt" in loop["shield"]
    return row | {"events": loop["shield"], "guard": dict(damped - Counter(silence=1))}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of runs that ended standing, its share's Wilson interval, falls, errors, stops and events.

    A run that ends early for any reason counts as not standing. Errors are averaged over complete runs only.
    """
    reported = [row for row in rows if not row["status"]]
    stood = [row for row in reported if row["standing"]]
    low, high = wilson(len(stood), len(rows))
    events = {kind: dict(sum((Counter(row[kind]) for row in reported), Counter())) for kind in ("events", "guard")}
    found: dict[str, Any] = {"runs": len(rows), "failed": len(rows) - len(reported)}
    found |= {"standing": len(stood), "standing_low": low, "standing_high": high}
    found |= {"falls": sum(row["falls"] > 0 for row in reported)}
    found["stopped"] = dict(Counter(row["stopped"] for row in reported if row["stopped"]))
    found["fell_lying_down"] = sum(row["fell_lying_down"] for row in stood)  # after the end of the episode: no fall
    return found | events | {name: mean_interval([row[name] for row in stood]) for name in ERRORS}


def missed(total: dict[str, Any]) -> list[str]:
    """Return the thresholds that a summary misses, as sentences."""
    found = [f"failed: {total['failed']} of {total['runs']} runs"] if total["failed"] else []
    found += [f"stopped by other than a tilt: {reason}" for reason in sorted(set(total["stopped"]) - {"tilt"})]
    if total["standing"] / total["runs"] < STANDING:
        found.append(
            f"only {total['standing']} of {total['runs']} runs ended standing, the threshold is {STANDING:.0%}"
        )
    return found


def table(rows: list[dict[str, Any]], total: dict[str, Any]) -> str:
    """Return a table with a line for each run, and the summary `total`."""
    line = "{:>4}  {:>6}  {:>6}  {:>12}  {:>12}  {:>7}  {}".format
    lines = [line("seed", "falls", "s", "velocity m/s", "yaw rad/s", "late %", "stops and events")]
    for row in rows:
        if row["status"]:
            lines.append(line(row["seed"], "", "", "", "", "", f"failed with status {row['status']}"))
            continue
        said = " ".join(f"{reason}: {n}" for kind in ("events", "guard") for reason, n in row[kind].items())
        errors = [f"{row[name]:.3f}" for name in ERRORS]
        lines.append(line(row["seed"], row["falls"], row["seconds"], *errors, f"{100 * row['late_share']:.2f}", said))
    ended = "{standing} of {runs} runs ended standing [{standing_low:.3f}, {standing_high:.3f}]".format(**total)
    lines.append(ended + "; {falls} fell, {failed} failed".format(**total))
    lines += [f"stopped: {reason}: {n}" for reason, n in total["stopped"].items()]
    lines.append("tipped over afterwards, lying down, in {fell_lying_down}".format(**total))
    for name in ERRORS:
        if total[name]["low"] is not None:
            lines.append("{}: {mean:.3f} [{low:.3f}, {high:.3f}]".format(name, **total[name]))
    return "\n".join(lines)


def main() -> int:
    """Make all runs and write the table; return 1 if a run failed or was stopped for another reason than a tilt, or if
    under 95 % of the runs ended standing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle, or a run folder that holds one")
    parser.add_argument("--runs", type=int, default=20, help="number of runs")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a run, s")
    parser.add_argument("--push-every", type=float, default=5.0, help="time between two pushes, s; 0: none")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    a = parser.parse_args()
    domain = random.SystemRandom().randrange(DOMAINS)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(a.jobs) as pool:
        walk = partial(one_run, bundle=a.bundle, folder=Path(folder), seconds=a.seconds, push_every=a.push_every)
        first = first_episode(a.out, RESULTS)
        rows = list(pool.map(partial(walk, domain=domain, first=first), range(a.runs)))
    total = summary(rows)
    misses = missed(total)
    result = {"task": TASK, "seconds": a.seconds, "push_every": a.push_every, "jobs": a.jobs}
    result |= total | {"bars": {"standing": STANDING}, "missed": misses, "rows": rows, "provenance": provenance()}
    write_json(a.out, result)
    sys.stdout.write((json.dumps(result) if a.json else "\n".join([table(rows, total), *misses])) + "\n")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
