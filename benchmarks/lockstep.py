"""Run a bundle on the twin in lockstep twice, and compare the two runs bit by bit.

    python -m benchmarks.lockstep runs/improve --robot panda --episodes 200
    python -m benchmarks.lockstep runs/walk --robot go2 --episodes 50 --seconds 60
    python -m benchmarks.lockstep runs/walk --robot go2 --episodes 2 --processes --busy 2

Both runs are `deploy --twin`. With `--processes` the second is `launch`: twin, guard and policy have a process each.
With `--busy N` the second shares the machine with N processes that do nothing but use it. With `--parallel` both run at
once, on a processor each. Results go to benchmarks/results/lockstep.json: success with its interval, speed as a
multiple of real time, and whether the runs are equal: every episode's length, return, mean change of the action, and
the time of every event.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "lockstep.json"
HOG = "while True: pass"


def run(args: argparse.Namespace, out: Path, processes: bool = False, busy: int = 0, cpu: int = -1) -> dict[str, Any]:
    """Return the summary of a run, its rows and events, and its speed."""
    domain = str(random.SystemRandom().randint(100, 199))
    command = [sys.executable, "-m", "robot_rl.cli.main"]
    if processes:
        values = {"policy": args.bundle, "robot": args.robot, "twin": "true", "lockstep": "true", "camera": "false"}
        values |= {"episodes": args.episodes, "seconds": args.seconds, "out": out, "domain_id": domain}
        command += ["launch", "quadruped" if args.robot == "go2" else "arm"]
        command += [f"{name}:={value}" for name, value in values.items()]
    else:
        values = {"robot": args.robot, "episodes": args.episodes, "seconds": args.seconds, "out": out}
        values |= {"video-episodes": 0, "commands": "schedule"}
        command += ["deploy", str(args.bundle), "--twin", *(f"--{name}={value}" for name, value in values.items())]
    command = ["taskset", "--cpu-list", str(cpu), *command] if cpu >= 0 else command
    with ExitStack() as hogs:
        for _ in range(busy):
            hog = hogs.enter_context(subprocess.Popen([sys.executable, "-c", HOG]))
            hogs.callback(hog.kill)
        done = subprocess.run(
            command, capture_output=True, text=True,
            env=os.environ | {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "ROS_DOMAIN_ID": domain},
        )  # fmt: skip
    if done.returncode not in (0, 1) or "did not arrive" in done.stderr + done.stdout:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    evaluation, loop = (json.loads((out / f"{name}.json").read_text()) for name in ("evaluation", "loop"))
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return {"speed": loop["speed"], "evaluation": evaluation, "rows": rows, "events": events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--robot", default="panda")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.0, help="length of an episode; 0: the task's")
    parser.add_argument("--processes", action="store_true", help="second run with a process per node")
    parser.add_argument("--parallel", action="store_true", help="both runs at once")
    parser.add_argument("--busy", type=int, default=0, help="processes beside the second run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folders = Path(folder, "first"), Path(folder, "second")
        with ThreadPoolExecutor(1 + args.parallel) as pool:
            cpus = (0, 1) if args.parallel else (-1, -1)
            one = pool.submit(run, args, folders[0], cpu=cpus[0])
            other = pool.submit(run, args, folders[1], args.processes, args.busy, cpus[1])
        first, second = one.result(), other.result()
    equal = all(first[part] == second[part] for part in ("evaluation", "rows", "events"))
    names = ("episodes", "success", "success_low", "success_high", "standing", "falls", "action_change")
    row = {name: first["evaluation"][name] for name in names if name in first["evaluation"]}
    row |= {"equal": equal, "speed": first["speed"], "speed_second": second["speed"], "busy": args.busy}
    row |= {"processes": args.processes, "parallel": args.parallel, "seconds": args.seconds, "provenance": provenance()}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    write_json(RESULTS, results | {args.robot: row})
    print(json.dumps(row, indent=2))
    if not equal:
        raise SystemExit("the two runs differ")


if __name__ == "__main__":
    main()
