"""Measure prompts of hilp, with unchanged weights, against random directions: imagined states, and rewards.

    python -m benchmarks.prompts --seeds 3

For each seed: collect aimless episodes in testbed:maze, train hilp with the settings of its check, and store prompts
with `robot-rl prompt`. A prompt passes if it is better than 95 % of 200 random directions, and on states also better
than the goal prompt of the last imagined state.

States: 30 of a scripted motion, `MOTION`, as a set and as a sequence. 32 episodes begin within 0.05 m of the first
state and take 30 steps. The measure is the energy distance between the visited positions x and the imagined positions
y, all with equal weight, 2 E|x - y| - E|x - x'| - E|y - y'|, m: 0 if they are distributed alike.

Rewards: 1 per step in one of `REGIONS`. 100 episodes of 100 steps begin anywhere. The measure is the mean return. Only
the region `JUDGED` counts: chosen on seed 100, as are all settings here. The other regions show the limits: a constant
direction ends at an end of the embedding, not between its ends.

Results go to benchmarks/results/prompts.json.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.one_step import command
from policies.bundle import load_bundle
from policies.hilbert import HilbertPolicy
from robot_rl.bench.checks import checks
from robot_rl.cli.prompt import is_inside
from robot_rl.data import DatasetWriter
from robot_rl.data.recording import features
from robot_rl.interface.observation_spec import STATE
from robot_rl.training.run import provenance, write_json
from sim.make import describe
from sim.testbeds.maze import NEAR, Maze, outside

RESULTS = Path(__file__).parent / "results" / "prompts.json"
TASK, RANDOM, SHARE = "testbed:maze", 200, 0.95
"""Task, number of random directions, and the share of them that a prompt must beat."""
FRAMES, STEPS = 30, 100
"""Number of imagined states, and of steps of an episode with the reward."""
MOTION = ((-0.8, -0.9), (0.3, -0.9), (0.3, -0.55), (-0.8, -0.55), (-0.8, -0.9))
"""Corners of the imagined motion, once round a rectangle in the lowest room, m: no episode's goal leads along it."""
REGIONS = {
    f"{row} {side}": (f"position.x={x}", f"position.y={y}")
    for row, y in (("low", "-1:-0.45"), ("middle", "-0.2:0.2"), ("top", "0.45:1"))
    for side, x in (("left", "-1:-0.4"), ("right", "0.4:1"))
}
"""Both ends of the three rooms, as options --within."""
JUDGED = "top right"
"""The end of the maze that is behind both walls for most starts."""
AHEAD = 2
"""Option --ahead with which the sequence is followed."""


def motion() -> Tensor:
    """Return the imagined positions (FRAMES, 2), equally far apart along `MOTION`, m."""
    corners = torch.tensor(MOTION)
    lengths = torch.cat([torch.zeros(1), (corners[1:] - corners[:-1]).norm(dim=1).cumsum(0)])
    at = torch.linspace(0, float(lengths[-1]), FRAMES)
    xy = [np.interp(at.numpy(), lengths.numpy(), corners[:, k].numpy()) for k in (0, 1)]
    return torch.from_numpy(np.stack(xy, 1)).float()


def energy_distance(x: Tensor, y: Tensor) -> float:
    """Return the energy distance between sets of positions x (N, 2) and y (K, 2), m."""
    across, within, other = (torch.cdist(a, b).mean() for a, b in ((x, y), (x, x), (y, y)))
    return float(2 * across - within - other)


def visited(policy: HilbertPolicy, start: Tensor, goal: Tensor, steps: int) -> Tensor:
    """Return the positions (steps, n, 2) after each step of episodes from `start` (n, 2), with `goal` (n, 2) in the
    state; goals do not end them."""
    state, rng, rows = torch.cat([start, goal], 1), torch.Generator(), []
    for _ in range(steps):
        state = Maze().advance(state, policy.act({STATE: state}, rng)[:, 0])
        rows.append(state[:, :2])
    return torch.stack(rows)


def distance(policy: HilbertPolicy, imagined: Tensor, goal: Tensor) -> float:
    """Return the energy distance of a policy's episodes from the first imagined state on, m; `goal` (2,) in states."""
    near = 0.1 * torch.rand(32, 2, generator=torch.Generator().manual_seed(0)) - 0.05
    start = outside(imagined[0] + near)
    return energy_distance(visited(policy, start, goal.expand(32, 2), len(imagined)).flatten(0, 1), imagined)


def returns(policy: HilbertPolicy) -> Tensor:
    """Return the mean number of steps in each region (regions,) of 100 episodes."""
    at = Maze().start(torch.rand(100, 4, generator=torch.Generator().manual_seed(0)))
    positions = visited(policy, at[:, :2], at[:, 2:], STEPS).flatten(0, 1)
    info = describe(TASK, None, None)
    states = torch.cat([positions, positions], 1)
    return STEPS * torch.stack([is_inside(states, ranges, info).mean() for ranges in REGIONS.values()])


def write_states(path: Path, positions: Tensor) -> None:
    """Write a dataset of one episode with positions (T, 2) and no motion of the robot."""
    info, count = describe(TASK, None, None), len(positions)
    none, action = np.zeros((count, 1), bool), np.zeros((count, 2), np.float32)
    columns = {"observation.state": np.concatenate([positions, positions], 1), "action": action}
    columns |= {"action.policy": action, "next.reward": none.astype(np.float32)}
    columns |= {"next.success": none, "next.done": none, "intervention": none}
    with DatasetWriter.create(path, fps=round(info.rate), features=features(info)) as writer:
        writer.add_episode(columns, "imagined")


def train(seed: int, work: Path, updates: int) -> HilbertPolicy:
    """Collect, train and prompt with the commands that a user types, as far as that is not done; return the policy."""
    check, common, states = checks["hilp"], ("--seed", seed), work / "states"
    data, run = work / "data", work / "run"
    if not data.exists():
        command("collect", TASK, *check.data, *common, "--out", data)
    flags = list(check.method.flags)
    flags[flags.index("--training.updates") + 1] = str(updates)
    words = ("--recipe", check.method.recipe, *flags, *common, "--dataset", data, "--threads", 1)
    command("train", TASK, *words, "--resume", "--out", run)
    if not states.exists():
        write_states(states, motion())
    prompts: dict[str, tuple[object, ...]] = {"set": ("--states", states)}
    prompts["sequence"] = ("--states", states, "--ahead", AHEAD)
    prompts |= {name: tuple(word for text in REGIONS[name] for word in ("--within", text)) for name in REGIONS}
    for name, words in prompts.items():
        command("prompt", run, "--dataset", data, *words, "--out", work / name)
    return opened(run)


def opened(path: Path) -> HilbertPolicy:
    """Return the policy of a bundle of hilp."""
    policy = load_bundle(path).policy
    assert isinstance(policy, HilbertPolicy)
    return policy


def measure(seed: int, work: Path, updates: int) -> dict[str, Any]:
    """Return one seed's distances and returns, and the share of random directions that each prompt beats."""
    began, imagined = time.monotonic(), motion()
    policy = train(seed, work, updates)
    torch.set_num_threads(1)
    directions = normalize(torch.randn(RANDOM, policy.config.embedding, generator=torch.Generator().manual_seed(1)))
    randoms = [policy.prompted(z[None]) for z in directions]
    last = imagined[-1]
    found = {name: distance(opened(work / name), imagined, last) for name in ("set", "sequence")}
    found |= {"last_state": distance(policy, imagined, last)}
    far = torch.tensor([distance(each, imagined, last) for each in randoms])
    paid = torch.stack([returns(each) for each in randoms])
    regions = {}
    for k, name in enumerate(REGIONS):
        own = float(returns(opened(work / name))[k])
        beats = float((paid[:, k] < own).float().mean())
        regions[name] = {"return": own, "beats": beats, "random": spread(paid[:, k])}
    beats = {name: float((far > value).float().mean()) for name, value in found.items()}
    passed = {name: beats[name] >= SHARE and found[name] < found["last_state"] for name in ("set", "sequence")}
    passed |= {"reward": regions[JUDGED]["beats"] >= SHARE}
    result: dict[str, Any] = {"seed": seed, "updates": updates, "passed": passed, "distance": found, "beats": beats}
    result |= {"random_distance": spread(far), "regions": regions, "goal_success": goals_reached(policy)}
    return result | {"minutes": (time.monotonic() - began) / 60}


def goals_reached(policy: HilbertPolicy) -> float:
    """Return the share of 100 random goals reached with the goal in the state, as a measure of the training."""
    at = Maze().start(torch.rand(100, 4, generator=torch.Generator().manual_seed(2)))
    positions = visited(policy, at[:, :2], at[:, 2:], STEPS)
    return float(((positions - at[:, 2:]).norm(dim=-1) < NEAR).any(0).float().mean())


def spread(values: Tensor) -> dict[str, float]:
    """Return the ends, the 5th and 95th percentile and the median of values (N,)."""
    q = values.quantile(torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0])).tolist()
    return dict(zip(("least", "p5", "median", "p95", "most"), q, strict=True))


def main() -> int:
    """Measure every seed; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="training seeds: 0, 1, ...")
    parser.add_argument("--first", type=int, default=0, help="first training seed; settings were chosen on 100")
    parser.add_argument("--updates", type=int, default=16_000, help="gradient steps; default: those of the check")
    parser.add_argument("--work", type=Path, default=Path("runs/prompts"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    arguments = parser.parse_args()
    rows = []
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        rows.append(measure(seed, arguments.work / f"seed-{seed}", arguments.updates))
        sys.stdout.write("{seed}: passed {passed}, distance {distance}, beats {beats}\n".format(**rows[-1]))
        sys.stdout.flush()
        found = {"motion": MOTION, "judged": JUDGED, "ahead": AHEAD, "share": SHARE, "random": RANDOM, "rows": rows}
        write_json(arguments.out, found | {"provenance": provenance()})
    return int(not all(all(row["passed"].values()) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
