"""Give a twin each fault of `robot-rl twin --fault`, record a run, and see what `robot-rl doctor --log` finds.

    python -m benchmarks.shaking --limits
    python -m benchmarks.shaking
    python -m benchmarks.shaking --only motor-delay --tasks ur5e-reach

Policies are slow sines on every action, so no training is needed. `--limits` prints the largest measures of runs
without a fault, which are in `robot_rl.diagnosis.limits`; their seeds are others than those of the table. The table
says in how many runs of each fault its cause was named first, named later, or missed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.bus import open_node
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.recording.motion import MotionLog
from real.twin.composed import composed_twin
from robot_rl.data.motion import NAME
from robot_rl.diagnosis import find, measure, read_motion
from robot_rl.training.run import provenance, write_json
from sim.tasks import tasks

RESULTS = Path(__file__).parent / "results" / "shaking.json"
TASKS, CLEAN_TASKS = ("fr3-reach", "ur5e-reach"), ("panda-lift", "fr3-reach", "fr3-lift", "ur5e-reach", "go2-velocity")
SECONDS = 6.0
"""Length of an episode, s."""
LIMIT_SEEDS, CLEAN_SEEDS, SEEDS = (1, 2, 3), (200, 201, 202), (100, 101)
FAULTS = (
    "motor-delay=0.04", "velocity-noise=0.5", "joint-order=2,4", "position-offset=2:0.08", "position-scale=1:1.3",
    "position-sign=2", "stiffness=6", "damping=3", "armature=10", "switch-jump=0.1", "state-rate=30",
)  # fmt: skip


def record(task_name: str, folder: Path, faults: tuple[str, ...] = (), seed: int = 0, seconds: float = SECONDS) -> str:
    """Record a run of slow sines on a twin in lockstep; return why it ended early, empty if it did not."""
    task, rng = tasks.get(task_name), np.random.default_rng(seed)
    rate = task.interface.controller.rate
    interface = replace(task.interface, horizon=round(seconds * rate), success="", failure="")
    with composed_twin(task, cameras=False, seed=seed, fault=faults) as twin, open_node("deploy") as node:
        env = RobotEnv(node, interface)
        log = MotionLog(env.loop, task_name, env.period)
        size = env.pipeline.actions.size
        frequency, phase = rng.uniform(0.2, 0.8, size), rng.uniform(0, 2 * math.pi, size)
        strength, base = 0.6, 0.0
        if twin.robot.base is not None:  # all legs alike, or it falls
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


def judged(task: str, faults: tuple[str, ...], seed: int, logs: Path) -> dict[str, Any]:
    """Judge one run, which is recorded if it is not in the folder of logs; return what was found."""
    torch.set_num_threads(1)
    folder = logs / "-".join([task, *faults, str(seed)])
    if not (folder / NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        record(task, folder, faults, seed)
    motion = read_motion(folder)
    measures = measure(motion)
    causes = [cause.name for cause in find(motion, measures)]
    return {"causes": list(dict.fromkeys(causes)), "evidence": measures.evidence()}


def apart(*run: Any) -> dict[str, Any]:
    """Do as `judged` in a process of its own, as one process opens one node."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(judged, run)


def case(task: str, fault: str, seeds: tuple[int, ...], logs: Path) -> dict[str, Any]:
    """Return how often a fault's cause was named; without a fault, how often any was."""
    runs = [apart(task, (fault,) if fault else (), seed, logs) for seed in seeds]
    if not fault:
        return {"runs": len(runs), "false_alarms": sum(bool(run["causes"]) for run in runs)}
    name = fault.partition("=")[0]
    first = sum(run["causes"][:1] == [name] for run in runs)
    later = sum(name in run["causes"][1:] for run in runs)
    return {
        "runs": len(runs), "first": first, "found": later, "missed": len(runs) - first - later,
        "causes": [run["causes"] for run in runs],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--limits", action="store_true", help="print the largest measures without a fault")
    parser.add_argument("--only", help="begin of a fault")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, len(SEEDS) + 1), help="of each fault")
    parser.add_argument("--logs", type=Path, help="folder for the runs; those in it are judged again, not recorded")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    logs = args.logs or Path(tempfile.mkdtemp())
    if args.limits:
        runs = [apart(task, (), seed, logs)["evidence"] for task in CLEAN_TASKS for seed in LIMIT_SEEDS]
        largest = {name: max(run[name] for run in runs) for name in runs[0]}
        sys.stdout.write(json.dumps(largest, indent=1) + "\n")
        return 0
    # Cases that are not run keep their results.
    table: dict[str, Any] = json.loads(args.out.read_text())["results"] if args.out.exists() else {}
    for task in args.tasks:
        for fault in ("", *FAULTS):
            if args.only and not fault.startswith(args.only) or (task, fault) == ("ur5e-reach", "armature=10"):
                continue  # the UR5e's model has no armature
            name = f"{task}: {fault or 'no fault'}"
            table[name] = case(task, fault, SEEDS[: args.seeds] if fault else CLEAN_SEEDS, logs)
            sys.stderr.write(f"{name}: {table[name]}\n")
            write_json(args.out, {"provenance": provenance(), "seconds": SECONDS, "results": table})
    return 0


if __name__ == "__main__":
    sys.exit(main())
