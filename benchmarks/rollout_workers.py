"""Measure what rollout workers cost: simulation and training with two workers of a local Ray cluster and without.

    python -m benchmarks.rollout_workers

The cluster has two nodes of this computer with one CPU each, besides the head. Both arms use two cores, by turns.
Results: docs/train.md.
"""

import argparse
import io
import os
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import torch

from robot_rl.cli.main import main as robot_rl
from robot_rl.cluster.remote import Cluster
from robot_rl.cluster.workers import on_workers
from robot_rl.training.run import provenance, read_metrics, write_json
from sim.make import make

RESULTS = Path(__file__).parent / "results" / "rollout_workers.json"
TASKS = {"panda-lift": 32, "go2-velocity": 512, "panda-lift-cameras": 32}
"""Number of environments by task."""
RUNS = {
    "sac, panda-lift": "panda-lift --recipe sac --training.num-envs 32 --training.steps 5000",
    "ppo, go2-velocity": "go2-velocity --recipe ppo --training.steps 245760",
}
"""Training runs, in words of `robot-rl train`."""


def simulate(env: Any, seconds: float) -> float:
    """Return the control periods per second of all environments, with random actions."""
    rng, steps, begun = torch.Generator().manual_seed(0), 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        env.step(2 * torch.rand(env.num_envs, env.info.action, generator=rng) - 1)
        steps += env.num_envs
    return steps / (time.perf_counter() - begun)


def train(words: str, address: str) -> float:
    """Return the seconds of a training run after its first line of metrics, on workers of the cluster at `address` if
    that is not empty."""
    more = ["--ray", address, "--workers", "2"] if address else []
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(said), redirect_stderr(said):
        status = robot_rl(["train", *words.split(), "--out", f"{folder}/run", *more])
        assert status == 0, said.getvalue()
        rows = read_metrics(Path(folder) / "run")
    return rows[-1]["seconds"] - rows[0]["seconds"]


def compare(rounds: int, seconds: float, address: str) -> dict[str, Any]:
    """Return the rates and times of both arms, and the median ratios of rounds."""
    results: dict[str, Any] = {}
    cluster = Cluster(address)
    for task, count in TASKS.items():
        envs = {"here": make(task, count), "workers": on_workers(cluster, 2)(task, count)}
        rates: dict[str, list[float]] = {name: [] for name in envs}
        for env in envs.values():
            env.reset(seed=0)
            simulate(env, 2)
        for _ in range(rounds):
            for name, env in envs.items():
                rates[name].append(simulate(env, seconds))
        for env in envs.values():
            env.close()
        overhead = median(a / b for a, b in zip(rates["here"], rates["workers"], strict=True)) - 1
        results[task] = {"environments": count, "steps_per_second": rates, "overhead": overhead}
        print(f"{task}: {median(rates['here']):.0f} steps/s, workers {median(rates['workers']):.0f}", flush=True)
    cluster.close()
    for name, words in RUNS.items():
        times: dict[str, list[float]] = {"here": [], "workers": []}
        for _ in range(max(2, rounds // 2)):
            for arm in times:
                times[arm].append(train(words, address if arm == "workers" else ""))
        overhead = median(b / a for a, b in zip(times["here"], times["workers"], strict=True)) - 1
        results[name] = {"command": words, "seconds": times, "overhead": overhead}
        print(f"{name}: {median(times['here']):.1f} s here, {median(times['workers']):.1f} s on workers", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="time of one measurement of a rate")
    options = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # loopback only
    from ray.cluster_utils import Cluster as Local

    node: dict[str, Any] = {"node_ip_address": "127.0.0.1", "object_store_memory": 200_000_000}
    local = Local(initialize_head=True, head_node_args=node | {"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(2):
            local.add_node(**node, num_cpus=1)
        results = compare(options.rounds, options.seconds, local.address)
    finally:
        local.shutdown()
    write_json(RESULTS, {"provenance": provenance(), "results": results})
    for name, row in results.items():
        print(f"{name}: overhead {100 * row['overhead']:.1f} %")


if __name__ == "__main__":
    main()
