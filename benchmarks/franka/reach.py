"""Reach for minutes on a simulator that enforces the limits of a real FR3: any reflex ends the run.

    make sims
    robot-rl collect fr3-reach --episodes 100 --image-size 0 --out datasets/reach
    robot-rl train fr3-reach --recipe bc --dataset datasets/reach --out runs/reach
    python -m benchmarks.franka.reach runs/reach --minutes 10

`robot-rl robot fr3` holds the arm of franka-sim, `robot-rl deploy` runs the policy; this program is the tracker of the
target. Results go to benchmarks/results/franka_reach.json.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.franka import strict
from benchmarks.franka.tracker import Tracker
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parents[1] / "results" / "franka_reach.json"
PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
HOST = "127.0.0.5"
RANGES = ((0.36, 0.62), (-0.25, 0.25), (0.08, 0.40))
"""Ranges of x, y and z of the target, m: those of the task."""


class Target:
    """Target that is somewhere else in each episode."""

    def __init__(self) -> None:
        self.place(0)
        self.tracker = Tracker("target", self.place)
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def place(self, seed: int) -> None:
        """Place the target for episode `seed`."""
        rng = np.random.default_rng(seed)
        self.position = [float(rng.uniform(*r)) for r in RANGES]

    def _publish(self) -> None:
        while not self.ended.wait(1 / 30):
            self.tracker.publish(self.position)

    def close(self) -> None:
        self.ended.set()
        self._thread.join()
        self.tracker.node.close()


def run(a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Reach until the time is over or the robot stops; return the results."""
    server = strict.start(a.sims, folder, HOST)
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:  # a robot's controller has a computer of its own
        for task in os.listdir(f"/proc/{server.pid}/task"):
            os.sched_setaffinity(int(task), cpus[-1:])
        os.sched_setaffinity(0, cpus[:-1])
    robot = subprocess.Popen([*PROGRAM, "robot", "fr3", "--host", HOST], stderr=subprocess.PIPE, text=True)
    try:
        assert robot.stderr
        said = robot.stderr.readline()
        assert "is up" in said, said
        target = Target()
        out = ["--out", str(folder / "run"), "--episodes", "100000", "--video-episodes", "0", "--speed", str(a.speed)]
        log = (folder / "deploy").open("wb")
        policy = subprocess.Popen([*PROGRAM, "deploy", str(a.bundle), "--robot", "fr3", *out], stdout=log, stderr=log)
        begin = time.monotonic()
        try:
            policy.wait(60 * a.minutes)
        except subprocess.TimeoutExpired:
            policy.send_signal(signal.SIGINT)
            policy.wait(60)
        minutes = (time.monotonic() - begin) / 60
        target.close()
    finally:
        robot.terminate()
        last = robot.communicate(timeout=20)[1].strip().splitlines()
        server.send_signal(signal.SIGINT)
        server.wait(30)
    lost, cycles, row = map(int, re.findall(r"(\d+) of (\d+) cycles lost, at most (\d+)", last[-1])[0])
    record = folder / "run" / "episodes.jsonl"
    assert record.exists(), (last, (folder / "deploy").read_text())
    episodes = [json.loads(line) for line in record.read_text().splitlines()]
    found = {"speed": a.speed, "minutes": round(minutes, 2), "cycles": cycles}
    found["simulator_speed"] = round(cycles / 60000 / minutes, 2)
    found |= {"lost": lost, "lost_share": lost / max(1, cycles), "lost_in_row": row}
    found |= {"episodes": len(episodes), "successes": sum(e["success"] for e in episodes)}
    ended = (folder / "deploy").read_text().replace(f"{folder}/", "").splitlines()[-3:]
    return found | {"start": said.strip(), "robot": last, "deploy": ended}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle, or a run folder that holds one")
    parser.add_argument("--minutes", type=float, default=10.0, help="duration")
    parser.add_argument("--speed", type=float, default=1.0, help="share of the policy's speed and acceleration")
    parser.add_argument("--sims", type=Path, default=Path(".venv-sims/bin/python"), help="Python of the simulators")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    os.environ.setdefault("ROS_DOMAIN_ID", str(random.SystemRandom().randrange(100, 200)))
    with tempfile.TemporaryDirectory() as folder:
        found = run(a, Path(folder))
    write_json(a.out, found | {"provenance": provenance()})
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
