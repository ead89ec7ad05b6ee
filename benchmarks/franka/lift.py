"""Lift a cube through Franka's protocol, on a simulator that others wrote: a policy trained here, zero-shot.

    make sims
    robot-rl collect fr3-lift --episodes 100 --image-size 0 --out datasets/fr3
    robot-rl train fr3-lift --recipe diffusion-bc --dataset datasets/fr3 --out runs/fr3-clone
    robot-rl train fr3-lift --recipe resfit --base runs/fr3-clone --dataset datasets/fr3 --out runs/fr3
    python -m benchmarks.franka.lift runs/fr3

The simulator is franky-sim (benchmarks/franka/world.py); `robot-rl robot fr3` holds its arm, and `robot-rl deploy` runs
the policy. This program stands in for the tracker of the cube, and for the person who places it. Results go to
benchmarks/results/franka_lift.json.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.franka.tracker import Tracker
from benchmarks.suites import first_episode
from robot_rl.robots import robots
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import wilson

RESULTS = Path(__file__).parents[1] / "results" / "franka_lift.json"
PROGRAM = [sys.executable, "-m", "robot_rl.cli.main"]
TRACKERS = {"true": (0.0, 0.0), "noisy": (0.0025, 0.06)}
"""Noise, m, and delay, s, of the tracker."""
RANGES = ((0.36, 0.62), (-0.22, 0.22), (-0.35, 0.35))
"""Ranges of x and y, m, and yaw, rad, of the cube: those of the task."""
EVERY = 33
"""Simulated time between two poses of the cube, ms."""
HEIGHT = 0.12
"""Height at which the cube counts as lifted, m."""


class World:
    """The simulator, its tracker, and the person who places the cube."""

    def __init__(self, python: Path, host: str, tracker: str, film: str = ""):
        home = ",".join(map(str, robots.get("fr3").home))
        command = [str(python), "-m", "benchmarks.franka.world", host, home, *([film] if film else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) > 1:  # a robot's controller has a computer of its own
            os.sched_setaffinity(self.process.pid, cpus[-1:])
            os.sched_setaffinity(0, cpus[:-1])
        self.noise, self.delay = TRACKERS[tracker]
        self.rng = np.random.default_rng(0)
        self.highest = 0.0
        """Largest true height of the cube since it was placed, m."""
        self.heights: list[float] = []
        """`highest` of each finished episode."""
        self.tracker = Tracker("cube", self.place)
        self.first, self.last, self.count = math.inf, 0.0, 0
        """Time, monotonic s, of the first and last pose, and their number."""
        self._seen: deque[tuple[float, list[float]]] = deque()
        self._thread = threading.Thread(target=self._track, daemon=True)
        self._thread.start()

    def place(self, seed: int) -> None:
        """Place the cube for episode `seed`."""
        rng = np.random.default_rng(seed)
        self.heights.append(self.highest)
        self.highest = 0.0
        self._seen.clear()
        assert self.process.stdin
        self.process.stdin.write(" ".join(f"{rng.uniform(*r):.4f}" for r in RANGES) + "\n")
        self.process.stdin.flush()

    def _track(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            now, numbers = time.monotonic(), [float(word) for word in line.split()]
            self.first, self.last, self.count = min(self.first, now), now, self.count + 1
            self.highest = max(self.highest, numbers[2])
            self._seen.append((now, numbers))
            while len(self._seen) > 1 and self._seen[1][0] <= now - self.delay:
                self._seen.popleft()
            if now - self._seen[0][0] >= self.delay:
                position, quat = np.split(self._seen[0][1], [3])
                self.tracker.publish((position + self.rng.normal(0, self.noise, 3)).tolist(), quat.tolist())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)
        self.heights.append(self.highest)
        self.tracker.node.close()


def run(a: argparse.Namespace, folder: Path, first: int) -> dict[str, Any]:
    """Run all episodes; return the results."""
    world = World(a.sims, a.host, a.tracker, str(a.film or ""))
    # franky-sim reports the motors' torques as external ones.
    hold = [*PROGRAM, "robot", "fr3", "--host", a.host, "--max-torque", "100"]
    robot = subprocess.Popen(hold, stderr=subprocess.PIPE, text=True)
    try:
        assert robot.stderr
        said = robot.stderr.readline()
        assert "is up" in said, said
        options = ["--robot", "fr3", "--episodes", str(a.episodes), "--seed", str(first), "--out", str(folder / "run")]
        options += ["--seconds", str(a.seconds)]
        deploy = [*PROGRAM, "deploy", str(a.bundle), *options, "--video-episodes", "0", "--json"]
        subprocess.run(deploy, check=True, stdout=subprocess.DEVNULL)
    finally:
        robot.terminate()
        last = robot.communicate(timeout=20)[1]
        world.close()
    seen = json.loads((folder / "run" / "evaluation.json").read_text())
    loop = json.loads((folder / "run" / "loop.json").read_text())
    lifted = sum(height >= HEIGHT for height in world.heights[1:])
    low, high = wilson(lifted, a.episodes)
    speed = EVERY * world.count / 1000 / (world.last - world.first)
    found = {"tracker": a.tracker, "episodes": a.episodes, "seconds": a.seconds, "simulator_speed": round(speed, 2)}
    found |= {"lifted": lifted, "low": low, "high": high}
    found |= {key: seen[key] for key in ("success", "steps", "stopped")}
    found |= {key: loop[key] for key in ("late_share", "lateness_us", "state_age_ms", "inference_ms")}
    return found | {"heights": [round(h, 3) for h in world.heights[1:]], "robot": last.strip().splitlines()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle, or a run folder that holds one")
    parser.add_argument("--episodes", type=int, default=20, help="number of episodes")
    parser.add_argument("--tracker", choices=list(TRACKERS), default="true", help="errors of the cube's tracker")
    parser.add_argument("--seconds", type=float, default=5.0, help="time limit of an episode by the machine's clock, s")
    parser.add_argument("--sims", type=Path, default=Path(".venv-sims/bin/python"), help="Python of the simulators")
    parser.add_argument("--host", default="127.0.0.5", help="address of the simulated robot")
    parser.add_argument("--film", type=Path, help="file for the poses of all bodies")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    os.environ.setdefault("ROS_DOMAIN_ID", str(random.SystemRandom().randrange(100, 200)))
    with tempfile.TemporaryDirectory() as folder:
        found = run(a, Path(folder), first_episode(a.out, RESULTS))
    results = json.loads(a.out.read_text()) if a.out.exists() else {}
    results |= {a.tracker: found, "provenance": provenance()}
    write_json(a.out, results)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
