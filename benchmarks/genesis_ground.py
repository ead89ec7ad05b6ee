"""Walk on the same uneven ground in Genesis and in MuJoCo: `python -m benchmarks.genesis_ground runs/rough`.

Two levels, of half and of full difficulty: Genesis compiles each shape of the ground by itself, which takes a minute
and a half for these, and did not end in 15 minutes for all eight levels. Results go to
benchmarks/results/genesis_ground.json.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from policies.bundle import load_bundle
from robot_rl.evaluation import evaluate
from robot_rl.training.run import provenance, write_json
from robot_rl.util.seeds import HELD_OUT
from sim.env import TaskEnv
from sim.tasks import tasks
from sim.terrain import Terrain

RESULTS = Path(__file__).parent / "results" / "genesis_ground.json"
EPISODES = 100
KEYS = ("episodes", "success", "success_low", "success_high", "velocity_error", "yaw_error", "by_ground")


def main() -> None:
    """Evaluate a bundle of go2-rough on the same held-out episodes in both engines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle of go2-rough, or a run folder that holds one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bundle, task = load_bundle(options.bundle), tasks.get("go2-rough")
    task = replace(task, scene=replace(task.scene, ground=Terrain(levels=2)))
    result: dict[str, Any] = {}
    for engine in ("genesis", "mujoco"):
        begun = time.monotonic()
        env = TaskEnv(task, EPISODES, engine=engine, device="cpu")
        found = evaluate(bundle.policy, env, EPISODES, HELD_OUT).summary()
        env.close()
        result[engine] = {key: found[key] for key in KEYS} | {"seconds": round(time.monotonic() - begun)}
        sys.stdout.write(f"{engine}: {json.dumps(result[engine])}\n")
    write_json(RESULTS, result | {"provenance": provenance()})


if __name__ == "__main__":
    main()
