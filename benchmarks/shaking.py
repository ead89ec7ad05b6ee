"""Give a twin each fault of `robot-rl twin --fault`, record a run, and see what `robot-rl doctor --log` finds.

    python -m benchmarks.shaking --limits --tasks panda-lift go2-velocity --first-seed 0
    python -m benchmarks.shaking --seeds 3
    python -m benchmarks.shaking --only motor-delay --tasks ur5e-reach --seeds 1

Policies are slow sines on every action, so no training is needed. Runs without a fault give the thresholds of
`robot_rl.diagnosis.findings`; they are of other seeds, and of arms other tasks, than the runs with faults. Results go
to benchmarks/results/shaking.json: how often each fault was found, and what it was mistaken for.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "shaking.json"
LEGGED_TASK = "go2-velocity"
SECONDS = 12.0
"""Length of an episode, s."""
ARM = {
    "none": (), "motor-delay": ("motor-delay=0.04",), "velocity-noise": ("velocity-noise=0.5",),
    "joint-order": ("joint-order=2,4",), "position-offset": ("position-offset=2:0.08",),
    "position-scale": ("position-scale=1:1.3",), "position-sign": ("position-sign=2",), "stiffness": ("stiffness=4",),
    "damping": ("damping=3",), "armature": ("armature=30",), "switch-jump": ("switch-jump=0.1",),
    "state-rate": ("state-rate=30",),
}  # fmt: skip
LEGGED = {
    "none": (), "motor-delay": ("motor-delay=0.03",), "velocity-noise": ("velocity-noise=5",),
    "joint-order": ("joint-order=2,3",), "position-sign": ("position-sign=2",), "stiffness": ("stiffness=2",),
    "state-rate": ("state-rate=100",), "quaternion-order": ("quaternion-order",),
}  # fmt: skip
CASES = tuple(ARM | LEGGED)
"""Faults of an arm's and a legged twin by the name of the cause that should be found."""


def record(task_name: str, folder: Path, faults: tuple[str, ...] = (), seed: int = 0, seconds: float = SECONDS) -> str:
    """Record a run of slow sines on a twin in lockstep; return why it ended early, empty if it did not."""
    from real.bus import open_node
    from real.drivers.state import NotReady
    from real.episode.env import RobotEnv
    from real.recording.motion import MotionLog
    from real.twin.composed import composed_twin
    from sim.tasks import tasks

    task, rng = tasks.get(task_name), np.random.default_rng(seed)
    rate = task.interface.controller.rate
    interface = replace(task.interface, horizon=round(seconds * rate), success="", failure="")
    with composed_twin(task, cameras=False, seed=seed, fault=faults) as twin, open_node("deploy") as node:
        env = RobotEnv(node, interface)
        log = MotionLog(env.loop, task_name, env.period)
        size, legged = env.pipeline.actions.size, twin.robot.base is not None
        frequency, phase = rng.uniform(0.2, 0.8, size), rng.uniform(0, 2 * math.pi, size)
        strength, base = 0.6, 0.0
        if legged:  # all legs alike, or it falls
            frequency, phase = (np.tile(values[:3], size // 3) for values in (frequency, phase))
            strength, base = np.tile([0.02, 0.1, 0.1], size // 3), np.tile([0.0, -0.15, 0.3], size // 3)
        try:
            env.activate()
            env.reset(seed=seed)
            over, step = False, 0
            while not over:
                wave = base + strength * np.sin(2 * math.pi * frequency * step / rate + phase)
                _, _, *ends, _ = env.step(torch.from_numpy(wave).float()[None])
                over, step = any(map(bool, ends)), step + 1
        except NotReady as error:
            return str(error)
        finally:
            env.close()
            log.write(folder)
    return env.loop.stopped


def one_run(task: str, faults: tuple[str, ...], seed: int) -> dict[str, Any]:
    """Record and judge one run in a process of its own; return what it found."""
    with tempfile.TemporaryDirectory() as folder:
        code = f"from benchmarks.shaking import _child; _child({task!r}, {folder!r}, {faults!r}, {seed})"
        environment = os.environ | {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{task} with {faults or 'no fault'} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _child(task: str, folder: str, faults: tuple[str, ...], seed: int) -> None:
    from dataclasses import asdict

    from robot_rl.diagnosis import find, measure, read_motion

    torch.set_num_threads(1)
    ended = record(task, Path(folder), faults, seed)
    motion = read_motion(Path(folder))
    measures = measure(motion)
    causes = [cause.name for cause in find(motion, measures)]
    sys.stdout.write(json.dumps({"causes": causes, "ended": ended, "measures": asdict(measures)}) + "\n")


def extremes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest measures of runs without a fault, from which the limits in `findings` are made."""
    taken = [row["measures"] for row in rows]
    fitted = [m["fitted"] for m in taken if m["fitted"]]
    lags = [f["damping_scale"] / f["stiffness_scale"] for f in fitted]
    return {
        "delay": max(f["action_delay"] for f in fitted), "lag_low": min(lags), "lag_high": max(lags),
        "armature_low": min(f["armature_scale"] for f in fitted),
        "armature_high": max(f["armature_scale"] for f in fitted),
        "offset": max(abs(x) for m in taken for x in m["offset"]),
        "scale": max(abs(x - 1) for m in taken for x in m["scale"]),
        "sign": max(x for m in taken for x in m["sign"]), "order": max(m["order_gain"] for m in taken),
        "jump": max(m["jump"] or 0.0 for m in taken), "residual": max(m["residual"] for m in taken),
        "interval": max(m["interval"] / m["expected"] for m in taken),
        "noise": max(m["velocity_noise"] / (m["velocity_allowed"] or 1.0) for m in taken),
        "turned": max((m["quat_turned"] or 0.0) - (m["quat_as_is"] or 0.0) for m in taken),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", nargs="+", default=["fr3-reach", "ur5e-reach", LEGGED_TASK])
    parser.add_argument("--limits", action="store_true", help="only runs without a fault; print their extremes")
    parser.add_argument("--only", choices=CASES, help="one fault")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    names = ["none"] if args.limits else [args.only] if args.only else list(CASES)
    table: dict[str, Any] = {}
    for task in args.tasks:
        legged = task.startswith("go2")
        cases = {name: (LEGGED if legged else ARM)[name] for name in names if name in (LEGGED if legged else ARM)}
        for name, faults in cases.items():
            rows = [one_run(task, faults, args.first_seed + k) for k in range(args.seeds)]
            if args.limits:
                table[task] = extremes(rows)
                continue
            first = Counter(row["causes"][0] if row["causes"] else "nothing" for row in rows)
            right = "nothing" if name == "none" else name
            found = sum(right in (row["causes"] or ["nothing"]) for row in rows)
            mistaken = {cause: n for cause, n in first.items() if cause != right}
            table[f"{task}: {name}"] = {"fault": list(faults), "runs": len(rows), "found": found, "mistaken": mistaken}
            sys.stderr.write(f"{task}: {name}: found in {found} of {len(rows)}, mistaken for {mistaken or 'nothing'}\n")
    write_json(args.out, {"provenance": provenance(), "seconds": SECONDS, "results": table})
    sys.stdout.write(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
