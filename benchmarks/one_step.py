"""Measure one-step distillation: success and latency, compared with the base policy.

    python -m benchmarks.one_step --seeds 3

For each task and seed: collect, clone a diffusion policy of ten steps (base), distill it, evaluate both policies on the
same held-out episodes. Latency is one inference for one robot on one thread, the policies in turn in one process. The
distilled policy passes if its mean success is at most 5 points below the base's and it is at least 5 times faster.
Results go to benchmarks/results/one_step.json.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.suites import first_episode
from policies.bundle import load_bundle
from policies.networks.chunks import ChunkPolicy
from robot_rl.cli.main import main as robot_rl
from robot_rl.evaluation import evaluate
from robot_rl.training.run import provenance, write_json
from robot_rl.util.statistics import mean_interval
from sim.make import make

RESULTS = Path(__file__).parent / "results" / "one_step.json"
TASKS = {
    "testbed:fork-fast": ("--skill", "STEADY", "--episodes", "50"),
    "testbed:insert": ("--skill", "STEADY", "--episodes", "200", "--num-envs", "50"),
    "panda-lift": ("--episodes", "100"),
}
"""Options of `robot-rl collect` for each task."""
LOSS, FASTER = 0.05, 5.0
"""Largest loss of success, and least speed-up, with which the distilled policy passes."""


def command(*words: object) -> None:
    """Run a command of robot-rl in this process; raise if it fails."""
    if status := robot_rl([str(word) for word in words]):
        raise RuntimeError(f"robot-rl {' '.join(map(str, words))}: exit status {status}")


def latencies(policies: list[ChunkPolicy], inferences: int) -> list[float]:
    """Return each policy's median inference time for one robot, ms, measured in turn."""
    rng, times = torch.Generator().manual_seed(0), [[0.0] * inferences for _ in policies]
    seen = {"observation.state": torch.zeros(1, policies[0].size.observation)}
    for policy in policies:
        for _ in range(20):
            policy.infer(seen, rng)
    for k in range(inferences):
        for policy, row in zip(policies, times, strict=True):
            begun = time.perf_counter()
            policy.infer(seen, rng)
            row[k] = 1000 * (time.perf_counter() - begun)
    return [statistics.median(row) for row in times]


def measure(task: str, seed: int, work: Path, episodes: int, first: int) -> dict[str, Any]:
    """Run the stages of one task and seed; return the results."""
    folder = work / task.replace(":", "-") / f"seed-{seed}"
    data, base, student = folder / "data", folder / "base", folder / "one-step"
    common = ("--seed", seed, "--resume")
    command("collect", task, *TASKS[task], *common, "--out", data)
    for recipe, out, more in (("diffusion-bc", base, ()), ("consistency", student, ("--base", base))):
        words = ("--recipe", recipe, "--dataset", data, *more, *common, "--threads", 1, "--out", out)
        command("train", task, *words)
    policies: list[Any] = [load_bundle(path).policy for path in (base, student)]
    torch.set_num_threads(1)
    slow, fast = latencies(policies, 300)
    ten, one = (evaluate(policy, make(task, min(100, episodes)), episodes, first).success for policy in policies)
    gap = mean_interval([float(a) - float(b) for a, b in zip(one, ten, strict=True)])
    found = {"task": task, "seed": seed, "episodes": episodes, "base": sum(ten) / episodes}
    found |= {"one_step": sum(one) / episodes, "difference": gap, "base_ms": slow, "one_step_ms": fast}
    passed = sum(one) >= sum(ten) - LOSS * episodes and slow / fast >= FASTER
    return found | {"faster": slow / fast, "passed": passed}


def main() -> int:
    """Measure every task and seed; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="training seeds: 0, 1, ...")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each seed")
    parser.add_argument("--work", type=Path, default=Path("runs/one-step"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    arguments = parser.parse_args()
    rows, first = [], first_episode(arguments.out, RESULTS)
    for task in TASKS:
        for seed in range(arguments.seeds):
            rows.append(measure(task, seed, arguments.work, arguments.episodes, first))
            line = "{task} {seed}: {base:.3f} -> {one_step:.3f}, {faster:.1f} times faster\n"
            sys.stdout.write(line.format(**rows[-1]))
            sys.stdout.flush()
    write_json(arguments.out, {"loss": LOSS, "faster": FASTER, "rows": rows, "provenance": provenance()})
    return int(not all(row["passed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
