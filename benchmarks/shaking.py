"""Give a twin each fault of `robot-rl twin --fault`, record a run, and see what `robot-rl doctor --log` finds.

    python -m benchmarks.shaking --seeds 3
    python -m benchmarks.shaking --only motor-delay --seeds 1

Policies are slow sines on every action, so no training is needed. Runs without a fault give the thresholds of
`sim.diagnosis.limits`; they are of other seeds and tasks than the runs with faults. Results go to
benchmarks/results/shaking.json: how often each fault was found, and what it was mistaken for.
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

RESULTS = Path(__file__).parent / "results" / "shaking.json"
ARM_TASK, LEGGED_TASK = "panda-lift", "go2-velocity"
SECONDS = 12.0
"""Length of an episode, s."""
CASES = {
    "none": (), "motor-delay": ("motor-delay=0.06",), "velocity-noise": ("velocity-noise=0.5",),
    "joint-order": ("joint-order=2,4",), "position-offset": ("position-offset=2:0.08",),
    "position-scale": ("position-scale=4:1.15",), "position-sign": ("position-sign=2",),
    "stiffness": ("stiffness=4",), "damping": ("damping=3",), "armature": ("armature=30",),
    "switch-jump": ("switch-jump=0.1",), "state-rate": ("state-rate=30",), "quaternion-order": ("quaternion-order",),
}  # fmt: skip
"""Faults of a twin by the name of the finding that they should give."""


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
        strength = 0.25 if legged else 0.6
        try:
            env.activate()
            env.reset(seed=seed)
            over, step = False, 0
            while not over:
                wave = strength * np.sin(2 * math.pi * frequency * step / rate + phase)
                _, _, *ends, _ = env.step(torch.from_numpy(wave).float()[None])
                over, step = any(map(bool, ends)), step + 1
        except NotReady as error:
            return str(error)
        finally:
            env.close()
            log.write(folder)
    return env.loop.stopped
