"""Send fuzzed actions and observations through controller and shield, and judge every command that comes out.

    python -m benchmarks.faults.fuzz --actions 1000000

The judge knows only the robot's spec: position, speed and acceleration of every command, by differences; and MuJoCo's
contacts of the arm's meshes with each other and the table, at all commands of a period of the robots that come closest
in it, and of some others. The joint states that the controller sees are fuzzed too: noise, jumps, numbers that are not
finite. Results go to benchmarks/results/fuzz.json.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.collision import TOUCH
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.shield import JointShield
from robot_rl.interface.state import RobotState
from robot_rl.training.run import provenance, write_json
from sim.engines.spheres import Contacts
from sim.step.action_chain import REASONS, ActionChain
from sim.tasks import tasks

RESULTS = Path(__file__).parents[1] / "results" / "fuzz.json"
ROBOTS = 500
"""Robots that are fuzzed at once."""
CHOSEN = 5
"""Robots whose commands of a period are tried for contact: those that come closest, and as many others."""
STRANGE = (float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 0.0)


def actions(rng: np.random.Generator, last: np.ndarray, step: int) -> np.ndarray:
    """Return actions (n, A): steady pushes in one direction, noise, extremes, and some with strange numbers."""
    n, size = last.shape
    kind = rng.integers(0, 4, (n, 1))
    steady = np.where(step % 40 == 0, rng.uniform(-1, 1, last.shape), last)
    noise = rng.normal(0, 1, last.shape)
    fresh = np.select([kind == 1, kind == 2], [noise, np.sign(noise)], steady)
    bad = rng.random(n) < 0.02
    fresh[bad, rng.integers(0, size, bad.sum())] = rng.choice(STRANGE, bad.sum())
    return fresh


def observed(rng: np.random.Generator, true: Tensor, jump: float) -> Tensor:
    """Return joint positions (n, J), rad, as a faulty sensor reports them, with jumps up to `jump` rad."""
    seen = true + torch.from_numpy(rng.normal(0, 0.002, true.shape)).float()
    jumps = torch.from_numpy(rng.random(len(true)) < 0.02)
    seen[jumps] += torch.from_numpy(rng.uniform(-jump, jump, (int(jumps.sum()), true.shape[1]))).float()
    strange = torch.from_numpy(rng.random(len(true)) < 0.005)
    seen[strange, 0] = float("nan")
    return seen


def judge(robot: RobotSpec, commands: Tensor, tick: float) -> Counter[str]:
    """Return the number of commands (n, T, J), rad, that exceed a limit of the robot; the first two are given."""
    low, high, speed, most = (robot.limit(name) for name in ("low", "high", "velocity", "acceleration"))
    velocity = commands.diff(dim=1) / tick
    new = commands[:, 2:]
    return Counter({
        "not finite": int((~new.isfinite()).any(-1).sum()),
        "position": int(((new < low) | (new > high)).any(-1).sum()),
        "speed": int((velocity[:, 1:].abs() > speed + 1e-3).any(-1).sum()),
        "acceleration": int((velocity.diff(dim=1).abs() / tick > most + 0.05).any(-1).sum()),
    })  # fmt: skip


def clearance(pipeline: Pipeline, joints: Tensor) -> Tensor:
    """Return the shield's own distances (...), m, at joint positions (..., J), rad: where contacts are looked for."""
    shield = pipeline.shield
    assert isinstance(shield, JointShield) and shield.stopping and shield.stopping.clearance
    chain = shield.stopping.kinematics.chain(joints.flatten(0, -2))
    return shield.stopping.clearance(*chain[2:]).view(joints.shape[:-1])


def touching(robot: RobotSpec, contacts: Contacts, joints: Tensor) -> Counter[str]:
    """Return the numbers of postures (N, J), rad, with contact of links that are compared, of the table with a body
    other than the fingers, and of the table with fingers deeper than TOUCH."""
    found = Counter({"contact": 0, "table": 0})
    for posture in joints.double().numpy():
        found["contact"] += not contacts.pairs(posture).isdisjoint(robot.collision_pairs)
        depths = contacts.in_table()
        found["table"] += any(depth > TOUCH * (body in contacts.fingers) for body, depth in depths.items())
    return found


def fuzz(name: str, count: int, seed: int, jump: float) -> dict[str, Any]:
    """Fuzz the robot of a task with `count` actions; return the counts."""
    pipeline, rng = Pipeline(tasks.get(name).interface), np.random.default_rng(seed)
    robot, ticks = pipeline.robot, round(1 / pipeline.interface.controller.rate / pipeline.tick)
    contacts = Contacts(robot)
    chain = ActionChain(pipeline, ROBOTS, pipeline.tick, ticks)
    chain.reset(torch.arange(ROBOTS))
    chain.hold(torch.arange(ROBOTS), torch.tensor([robot.home]).expand(ROBOTS, -1))
    last, recent = np.zeros((ROBOTS, pipeline.actions.size)), chain.command[:, None].repeat(1, 2, 1)
    unsafe: Counter[str] = Counter()
    tried, least, begin = 0, torch.inf, time.monotonic()
    for step in range(max(1, count // ROBOTS)):
        last = actions(rng, last, step)
        seen = observed(rng, chain.command, jump)
        state = RobotState(seen, torch.zeros_like(seen), chain.last_action)
        commands = chain.decide(chain.refer(state), torch.from_numpy(last).float())
        recent = torch.cat([recent[:, -2:], commands], 1)
        unsafe.update(judge(robot, recent, pipeline.tick))  # keeps zeros
        last = np.nan_to_num(last, nan=0.0, posinf=1.0, neginf=-1.0).clip(-1, 1)
        apart = clearance(pipeline, commands).amin(1)
        least = min(least, float(apart.min()))
        chosen = {*apart.argsort()[:CHOSEN].tolist(), *rng.choice(ROBOTS, CHOSEN, replace=False).tolist()}
        tried += len(chosen) * ticks
        unsafe.update(touching(robot, contacts, commands[sorted(chosen)].flatten(0, 1)))
    refused = dict(zip(REASONS, chain.events.tolist(), strict=True))
    counts = {"actions": ROBOTS * (step + 1), "commands": ROBOTS * (step + 1) * ticks, "tried for contact": tried}
    return counts | {
        "unsafe": {k: unsafe[k] for k in sorted(unsafe)}, "least clearance, m": round(least, 4),
        "goals changed": refused, "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=1_000_000, help="actions of all robots together")
    parser.add_argument("--tasks", nargs="+", default=["fr3-lift", "panda-lift", "panda-turn", "ur5e-reach"])
    parser.add_argument("--seed", type=int, default=0, help="seed")
    parser.add_argument("--jump", type=float, default=0.1, help="largest jump of a joint state, rad")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    torch.set_num_threads(1)
    began = provenance()  # first: of the code that runs
    found = {name: fuzz(name, a.actions // len(a.tasks), a.seed, a.jump) for name in a.tasks}
    write_json(a.out, found | {"provenance": began})
    print(json.dumps(found, indent=1))
    return int(any(sum(each["unsafe"].values()) for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
