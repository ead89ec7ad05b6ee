"""Run a bundle on the twin in lockstep twice, and compare the two runs bit by bit.

    python -m benchmarks.lockstep runs/improve --robot panda --episodes 200
    python -m benchmarks.lockstep runs/walk --robot go2 --episodes 50 --seconds 60 --busy 2

With `--busy N` the second run shares the machine with N processes that do nothing but use it. Results go to
benchmarks/results/lockstep.json: success with its interval, speed as a multiple of real time, and whether the runs are
equal: every episode's length, return, mean change of the action, and the time of every event.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "lockstep.json"
HOG = "while True: pass"


def run(bundle: Path, robot: str, episodes: int, seconds: float, out: Path, busy: int) -> dict[str, Any]:
    """Return the summary of a run, its rows and events, and its speed."""
    file = "quadruped" if robot == "go2" else "arm"
    values = {"policy": bundle, "robot": robot, "twin": "true", "lockstep": "true", "episodes": episodes, "out": out}
    values |= {"camera": "false", "seconds": seconds, "domain_id": random.SystemRandom().randint(100, 199)}
    command = [sys.executable, "-m", "robot_rl.cli.main", "launch", file]
    with ExitStack() as hogs:
        for _ in range(busy):
            hog = hogs.enter_context(subprocess.Popen([sys.executable, "-c", HOG]))
            hogs.callback(hog.kill)
        done = subprocess.run(
            [*command, *(f"{name}:={value}" for name, value in values.items())], capture_output=True, text=True,
            env={"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"} | os.environ,
        )  # fmt: skip
    speed = re.search(r"ticks in lockstep, ([\d.]+) times real time", done.stdout)
    if done.returncode not in (0, 1) or speed is None:
        raise SystemExit(f"launch ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    evaluation = json.loads((out / "evaluation.json").read_text())
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return {"speed": float(speed[1]), "evaluation": evaluation, "rows": rows, "events": events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--robot", default="panda")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.0, help="length of an episode; 0: the task's")
    parser.add_argument("--busy", type=int, default=0, help="processes beside the second run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        first, second = (
            run(args.bundle, args.robot, args.episodes, args.seconds, Path(folder, name), busy)
            for name, busy in (("first", 0), ("second", args.busy))
        )
    equal = all(first[part] == second[part] for part in ("evaluation", "rows", "events"))
    names = ("episodes", "success", "success_low", "success_high", "standing", "falls", "action_change")
    row = {name: first["evaluation"][name] for name in names if name in first["evaluation"]}
    row |= {"equal": equal, "speed": first["speed"], "busy": args.busy, "speed_busy": second["speed"]}
    row |= {"seconds": args.seconds, "provenance": provenance()}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    write_json(RESULTS, results | {args.robot: row})
    print(json.dumps(row, indent=2))
    if not equal:
        raise SystemExit("the two runs differ")


if __name__ == "__main__":
    main()
