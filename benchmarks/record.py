"""Measure a clone of 20 demonstrations typed on a keyboard.

    python -m benchmarks.record

A simulated person types on a terminal: one key at a time, with keyboard repeats, a reaction time, and position
estimates that are 3 mm off. The terminal is the keyboard of `robot-rl record`, in real time. `diffusion-bc` learns from
the dataset with its defaults. Success is measured on 200 held-out episodes with the task's time limit of 5 s and with
15 s, since typing is slower than the demonstrator for which the limit was set. The figures are in docs/train.md.
"""

import argparse
import json
import os
import pty
import shutil
import sys
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.bundle import load_bundle
from robot_rl.cli.main import main as robot_rl
from robot_rl.cli.record import Record
from robot_rl.data import Dataset
from robot_rl.evaluation import evaluate
from robot_rl.training.run import provenance, write_json
from sim.env import TaskEnv
from sim.rendering.video import write_video
from sim.tasks import tasks

RESULTS = Path(__file__).parent / "results" / "record.json"
REACTION = 0.25
"""Age of the state that the person acts on, s."""
REPEAT_AFTER, REPEAT = 0.4, 1 / 30
"""Delay of a held key's first repeat, and time between repeats, s."""
TAP = 0.3
"""Minimum time between the person's decisions, s."""
EYE = 0.003
"""Standard deviation of the person's estimate of the cube position, sampled per episode, m."""
COAST = 0.10
"""Distance from the goal at which a held key is released, m; motion continues for 0.2 s plus the reaction time."""
AXES = (("w", "s"), ("a", "d"), ("r", "f"))


class Typist:
    """Lift the cube with keys: move above it, go down, close, lift. Called before and after every control period.

    A held key moves the tool to a far goal at full speed; taps of Shift and the key (1.2 cm each) reach a near goal.
    """

    def __init__(self, terminal: int, seed: int):
        self.terminal, self.rng = terminal, np.random.default_rng(seed)
        self.seen: deque[tuple[float, np.ndarray, float]] = deque()
        self.key, self.pressed, self.repeated = "", 0.0, 0.0
        self.next, self.steps, self.closed, self.error = 0.0, -1, 0.0, np.zeros(3)
        self.keys = 0
        """Keys pressed so far."""
        self.episodes = 0
        """Episodes begun so far."""
        self.frames: list[np.ndarray] = []

    def __call__(self, env: Any) -> None:
        """Observe the simulation and type the person's next keys."""
        now, steps = time.monotonic(), int(env.steps)
        if steps < self.steps or self.steps < 0:  # another episode
            self.seen.clear()
            self.key, self.closed, self.episodes = "", 0.0, self.episodes + 1
            self.next, self.error = now + 1.0, self.rng.normal(0, EYE, 3)
        self.steps = steps
        cube, tool = env.true.objects["cube"][0, :3], env.true.tool_position[0]
        self.seen.append((now, (cube - tool).double().numpy(), float(tool[2])))
        while len(self.seen) > 1 and self.seen[1][0] <= now - REACTION:
            self.seen.popleft()
        self._repeat(now)
        self._decide(now, self.seen[0][1] + self.error)

    def _repeat(self, now: float) -> None:
        if not self.key or now - self.pressed < REPEAT_AFTER:
            return
        count = int((now - max(self.repeated, self.pressed + REPEAT_AFTER - REPEAT)) / REPEAT)
        if count > 0:
            os.write(self.terminal, self.key.encode() * count)
            self.repeated = now

    def _press(self, key: str, now: float, hold: bool = False) -> None:
        os.write(self.terminal, key.encode())
        self.keys += 1
        self.key = key if hold else ""
        self.pressed = self.repeated = now
        # After a tap the person waits until they see what it did.
        self.next = now + (TAP if hold else TAP + REACTION) * self.rng.uniform(0.8, 1.3)

    def _decide(self, now: float, offset: np.ndarray) -> None:
        if self.closed:
            if now >= self.next and self.key != "r":
                self._press("r", now, hold=True)
            return
        near = np.abs(offset[:2]).max() < 0.008
        axis = 2 if near or (self.key in ("f", "F") and self.key) else int(np.abs(offset[:2]).argmax())
        distance = abs(offset[axis])
        if self.key:  # held: release in time
            axis = next(k for k, pair in enumerate(AXES) if self.key.lower() in pair)
            if abs(offset[axis]) < COAST:
                self.key, self.next = "", now + TAP + REACTION
            return
        if now < self.next:
            return
        if axis == 2 and distance < 0.01:
            self._press(" ", now)
            self.closed, self.next = now, now + 0.9
            return
        key = AXES[axis][0 if offset[axis] > 0 else 1]
        far = distance > COAST + 0.03
        self._press(key if distance > 0.04 else key.upper(), now, hold=far)


def record(out: Path, episodes: int, seed: int, film: Path | None) -> tuple[dict[str, Any], Typist]:
    """Record with the command `robot-rl record`, on whose terminal the typist types."""
    hands, terminal = pty.openpty()
    before = os.dup(0)
    os.dup2(terminal, 0)
    typist = Typist(hands, seed)

    def look(env: Any) -> None:
        typist(env)
        if film and typist.episodes == 1 and int(env.steps) % 2 == 0:
            typist.frames.append(env.engine.render(0, env.task.scene.cameras[0].name, 360, 480))

    begun = time.monotonic()
    try:
        Record("panda-lift", episodes=episodes, out=out, seed=seed, json=True).record(look)
    finally:
        os.dup2(before, 0)
        os.close(hands)
        os.close(terminal)
    if film:
        write_video(typist.frames, film, 10)
    lengths = [e.length for e in Dataset(out).episodes]
    return {
        "episodes": len(lengths),
        "seconds": time.monotonic() - begun,
        "keys": typist.keys,
        "rows": {"mean": float(np.mean(lengths)), "min": min(lengths), "max": max(lengths)},
    }, typist


def success(bundle: Path, horizon: int, episodes: int) -> dict[str, Any]:
    """Return the success of a bundle on held-out episodes with a time limit of `horizon` control periods."""
    task = tasks.get("panda-lift")
    env = TaskEnv(replace(task, interface=replace(task.interface, horizon=horizon)), min(100, episodes))
    result = evaluate(load_bundle(bundle).policy, env, episodes).summary()
    env.close()
    return {"control_periods": horizon} | {
        k: result[k] for k in ("episodes", "success", "success_low", "success_high", "steps_of_successes")
    }


def main() -> int:
    """Record, train, evaluate, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20, help="demonstrations")
    parser.add_argument("--evaluate", type=int, default=200, help="held-out episodes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the typist and of training")
    parser.add_argument("--updates", type=int, default=2000, help="gradient steps of diffusion-bc")
    parser.add_argument("--film", type=Path, help="mp4 of the first episode; rendering slows it down")
    parser.add_argument("--keep", type=Path, help="folder for dataset and run; default: a temporary one")
    a = parser.parse_args()
    folder = a.keep or Path(tempfile.mkdtemp())
    recorded, _ = record(folder / "dataset", a.episodes, a.seed, a.film)
    torch.set_num_threads(2)
    words = ["train", "panda-lift", "--recipe", "diffusion-bc", "--dataset", str(folder / "dataset")]
    words += ["--out", str(folder / "run"), "--seed", str(a.seed), "--training.updates", str(a.updates)]
    if status := robot_rl(words):
        return status
    horizon = tasks.get("panda-lift").interface.horizon
    rows = [success(folder / "run", n, a.evaluate) for n in (horizon, 3 * horizon)]
    table = {"recorded": recorded, "updates": a.updates, "seed": a.seed, "evaluated": rows}
    sys.stdout.write(json.dumps(table) + "\n")
    write_json(RESULTS, table | {"provenance": provenance()})
    if not a.keep:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
