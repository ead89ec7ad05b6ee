"""Measure what the features of act-jepa know about the pictures, against its controls.

    python -m benchmarks.features --seeds 1

For each seed: run the check of act-jepa on development episodes (`robot-rl bench methods --only act-jepa`), then fit a
ridge regression of the discs' positions and the point's position on the frozen features of each arm's pictures. It is
fitted to 300 episodes of the demonstrator and measured on 150 others. The claim holds if the method's error of the
discs is at least 20 % below the control's, its success is at most 5 points below, and its features have not collapsed:
their mean standard deviation is at least `FLOOR`. Settings were chosen on seed 100.

Results go to benchmarks/results/features.json.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from policies.base import EncodingPolicy
from policies.bundle import load_bundle
from robot_rl.bench.checks import checks
from robot_rl.bench.methods import Runner, run_check
from robot_rl.interface.observation_spec import PRIVILEGED
from robot_rl.report.folders import read_json
from robot_rl.training.run import SEED, provenance, write_json
from sim.testbeds.base import TestbedEnv
from sim.testbeds.discs import TOP, Discs

RESULTS = Path(__file__).parent / "results" / "features.json"
NAME, EPISODES = "act-jepa", 200
LOWER, LOSS, FLOOR = 0.2, 0.05, 0.1
"""Least reduction of the discs' error, largest loss of success, and least spread of features of the claim."""
PENALTY = 1.0
"""Ridge penalty, for standardized features."""


def steps(count: int, seed: int) -> dict[str, Tensor]:
    """Return pictures (N, H, W, 3) and states (N, 15) of the steps of `count` episodes of a steady demonstrator."""
    env = TestbedEnv(Discs(), count)
    demonstrator, running = env.make_demonstrator(seed), torch.ones(count, dtype=torch.bool)
    observation, _ = env.reset(seed=seed)
    rows: dict[str, list[Tensor]] = {TOP: [], PRIVILEGED: []}
    while running.any():
        for name, values in rows.items():
            values.append(observation[name][running])
        observation, _, terminated, truncated, _ = env.step(demonstrator.act(observation))
        running &= ~(terminated | truncated)
    return {name: torch.cat(values) for name, values in rows.items()}


@torch.no_grad()
def pictures_features(policy: EncodingPolicy, rows: dict[str, Tensor]) -> Tensor:
    """Return the features (N, F) of the pictures alone, without state and instruction, which follow unchanged."""
    cameras = policy.encoder.cameras["top"]
    return torch.cat([cameras(part.permute(0, 3, 1, 2).float() / 127.5 - 1) for part in rows[TOP].split(512)])


def ridge(x: Tensor, y: Tensor, other: Tensor, wanted: Tensor) -> Tensor:
    """Return the root mean squared error (D,) on (other, wanted) of the ridge regression of y (N, D) on x (N, F)."""
    mean, std = x.mean(0), x.std(0).clamp_min(1e-3)

    def columns(values: Tensor) -> Tensor:
        return torch.cat([(values - mean) / std, values.new_ones(len(values), 1)], 1).double()

    a, y = columns(x), y.double()
    weights = torch.linalg.solve(a.T @ a + PENALTY * torch.eye(a.shape[1], dtype=a.dtype), a.T @ y)
    return (columns(other) @ weights - wanted).square().mean(0).sqrt()


def measure(seed: int, work: Path) -> dict[str, Any]:
    """Return the figures of every arm of one seed's check."""
    if errors := run_check(NAME, checks[NAME], Runner(work), [seed], EPISODES, 1, lambda *_: None):
        raise RuntimeError(str(errors))
    torch.set_num_threads(1)
    known, others, arms = steps(300, 10_000 + seed), steps(150, 20_000 + seed), {}
    for part in checks[NAME].arms:
        run = work / NAME / part / f"{SEED}{seed}"
        policy = load_bundle(run).policy
        assert isinstance(policy, EncodingPolicy)
        x, other = pictures_features(policy, known), pictures_features(policy, others)
        error = ridge(x, known[PRIVILEGED][:, :14], other, others[PRIVILEGED][:, :14])
        arms[part] = {
            "success": read_json(run / "evaluation.json", dict, [])["success"],
            "discs_m": float(error[2:].mean()), "point_m": float(error[:2].mean()), "std": float(other.std(0).mean()),
        }  # fmt: skip
    method, control = arms["method"], arms["control"]
    passed = method["discs_m"] <= (1 - LOWER) * control["discs_m"] and method["std"] >= FLOOR
    return {"seed": seed, "passed": passed and method["success"] >= control["success"] - LOSS} | arms


def main() -> int:
    """Measure every seed; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of training seeds")
    parser.add_argument("--first", type=int, default=100, help="first training seed; 100, 101, ... are for development")
    parser.add_argument("--work", type=Path, default=Path("runs/features"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    arguments = parser.parse_args()
    rows = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        rows.append(measure(seed, arguments.work))
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
        bars = {"lower": LOWER, "loss": LOSS, "floor": FLOOR}
        write_json(arguments.out, bars | {"rows": rows, "provenance": provenance()})
    return int(not all(row["passed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
