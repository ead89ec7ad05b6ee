"""Measure success against inference delay for each way to execute chunks: panda-lift in simulation and on the twin.

    python -m benchmarks.inference_delay runs/diffusion runs/flow --episodes 400
    python -m benchmarks.inference_delay runs/steady --twin 10

Every policy runs the same held-out episodes with every execution at every delay, so differences are paired. Results go
to benchmarks/results/inference_delay.json; docs/results.md shows them, and how to train the policies. `--twin` measures
real inference delay on a twin with nominal dynamics, to isolate timing.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from policies.base import Chunk, Observation, Prefix
from policies.bundle import Bundle, load_bundle
from policies.execution import Execution, Mode, warm_up
from real.bus import open_node
from real.control.stop import STALE_GOAL
from real.episode.env import RobotEnv
from real.twin import ArmTwin, HiddenArm
from robot_rl.evaluation import evaluate
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import mean_interval
from sim.env import TaskEnv
from sim.tasks import tasks

RESULTS = Path(__file__).parent / "results" / "inference_delay.json"
MODES: tuple[Mode, ...] = ("receding", "asynchronous", "realtime", "ensemble")
DELAYS = (0, 50, 150, 300)
"""Inference delays, ms."""
KEYS = ("episodes", "success", "success_low", "success_high", "steps_of_successes", "action_change", "held_share")


def measure(bundle: Bundle, mode: Mode, delay: int, episodes: int) -> tuple[dict[str, Any], list[bool]]:
    """Return the results of one execution mode at one delay, ms, and whether each episode succeeded."""
    env = TaskEnv(bundle.task, min(100, episodes))
    periods = math.ceil(delay * env.rate / 1000)
    result = evaluate(bundle.policy, env, episodes, execution=Execution(mode, periods))
    env.close()
    summary = result.summary()
    return {"execution": mode, "delay_ms": delay} | {k: summary[k] for k in KEYS if k in summary}, result.success


def study(path: Path, episodes: int) -> list[dict[str, Any]]:
    """Return one policy's rows; `gain` is the paired difference in success to receding execution at the same delay."""
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


class Slowed:
    """Wrap a policy so that each inference takes at least `seconds`."""

    def __init__(self, policy: Any, seconds: float):
        self.policy, self.seconds = policy, seconds
        self.horizon, self.execute, self.inpaints = policy.horizon, policy.execute, policy.inpaints
        self.reset = policy.reset

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        """Return the policy's chunk, but not before `seconds` have passed since the call."""
        begin = time.monotonic()
        chunk: Chunk = self.policy.infer(observation, rng, prefix)
        time.sleep(max(0.0, begin + self.seconds - time.monotonic()))
        return chunk


PLAIN = HiddenArm({
    "robot.action_delay": 0.03, "robot.joint_friction": 0.2, "<object>.mass": 0.1, "<object>.size": 0.022,
    "sensor.object_noise": 0.001, "sensor.object_delay": 0.03, "sensor.joint_noise": 0.0003,
})  # fmt: skip


def serve() -> None:
    """Run the twin with nominal dynamics until SIGTERM."""

    torch.set_num_threads(1)
    with open_node("twin") as node:
        twin = ArmTwin(node, tasks.get("panda-lift"), cameras=False, hidden=PLAIN)
        signal.signal(signal.SIGTERM, lambda *_: twin.close())
        sys.stdout.write("up\n")
        sys.stdout.flush()
        twin.run()


class Trips:
    """Count stale goals during episodes only, because no goals are due between episodes."""

    def __init__(self, env: Any):
        self.env, self.count, self._before = env, 0, 0

    def __call__(self, _: int, infos: dict[str, Any]) -> None:
        now = self.env.loop.events.counts.get(STALE_GOAL, 0)
        self.count += now - self._before if infos["episode_steps"] > 1 else 0
        self._before = now


def on_twin(path: Path, episodes: int) -> list[dict[str, Any]]:
    """Return the rows of one policy on a twin, which has its own process, on a ROS domain limited to this machine."""

    os.environ |= {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "ROS_DOMAIN_ID": str(100 + os.getpid() % 100)}
    bundle, rows = load_bundle(path), []
    twin = subprocess.Popen([sys.executable, "-m", "benchmarks.inference_delay", "--serve"], stdout=subprocess.PIPE)
    assert twin.stdout is not None
    twin.stdout.readline()
    try:
        for delay in DELAYS:
            for mode in MODES[:3]:
                first = {"observation.state": torch.zeros(1, bundle.policy.size.observation)}
                warm_up(bundle.policy, first, Execution(mode))
                with open_node("policy") as node:
                    env = RobotEnv(node, bundle.interface)
                    env.activate()
                    wait = 0.8 * env.period if mode == "receding" else 0.0
                    execution = Execution(mode, background=True, patience=wait, period=env.period)
                    trips = Trips(env)
                    slow = Slowed(bundle.policy, delay / 1000)
                    result = evaluate(slow, env, episodes, on_step=trips, execution=execution)
                    env.close()
                summary = result.summary()
                row = {"policy": bundle.policy.class_name, "execution": mode, "delay_ms": delay}
                row |= {k: summary[k] for k in KEYS if k in summary}
                row |= {"stale_goals": trips.count, "stopped": env.loop.stopped, "periods": result.inference_periods}
                rows.append(row | {"waits_ms_p99": env.summary()["inference_ms"]["p99"]})
                sys.stdout.write(f"{rows[-1]}\n")
                sys.stdout.flush()
    finally:
        twin.terminate()
        twin.wait()
    return rows


def main() -> int:
    """Study every policy and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help="run folders of diffusion-bc and flow-bc")
    parser.add_argument("--episodes", type=int, default=200, help="held-out episodes of each cell")
    parser.add_argument("--twin", type=int, default=0, metavar="EPISODES", help="measure on the twin instead")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    torch.set_num_threads(1)
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"task": "panda-lift"}
    if arguments.twin:
        found = {"twin": [row for path in arguments.runs for row in on_twin(path, arguments.twin)]}
    else:
        found = {"rows": [row for path in arguments.runs for row in study(path, arguments.episodes)]}
    about = "twin_provenance" if arguments.twin else "provenance"
    write_json(RESULTS, known | found | {about: provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
