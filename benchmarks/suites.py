"""Run a benchmark suite: collect with its demonstrators, train, and evaluate after several counts of environment steps.

Used by `benchmarks.fetch`, `benchmarks.ogbench` and `benchmarks.metaworld`. Every stage is a command that a user would
type. Finished stages in --work are not repeated, and training continues from its last checkpoint.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.data import Dataset
from robot_rl.training.run import provenance, read_metrics, write_json
from robot_rl.util.files import file_name
from robot_rl.util.seeds import evaluation_seed

CURVE = 40
"""Approximate maximum number of rows of a curve."""
CORRECTED = (
    "resfit --training.num-envs 4 --agent.discount 0.99 --agent.n-step 5 --training.updates-per-step 0.5 "
    "--training.keep-successes --training.warmup 5000 --agent.exploration.warmup-noise 0.1 --agent.pooling min "
    "--residual.scale"
)
"""Recipe and options that correct a clone from success, in episodes of 50 to 300 steps; to be followed by the largest
correction. With default warm-up and the critics' mean, a good clone of pick-place first got worse (100 % to 78 %)."""
KEPT = ("episodes", "success", "success_low", "success_high", "return", "steps_of_successes")


@dataclass(frozen=True)
class Method:
    """Learning method for a task: recipe, demonstrations, and initial policy."""

    train: str
    """Recipe and options, without the number of steps."""
    collect: str
    """Options of `robot-rl collect` for the demonstrations."""
    base: str = ""
    """Recipe and options of the initial policy, trained on the same data; empty: from scratch."""
    reads_demos: bool = True
    """Whether the method itself reads the demonstrations, and not only its initial policy."""


@dataclass(frozen=True)
class Suite:
    """Tasks of a suite, and the commands that measure them."""

    name: str
    tasks: tuple[str, ...]
    """Task names without the prefix gym:."""
    methods: dict[str, Method]
    """Methods by name; the first is the default."""
    points: tuple[int, ...]
    """Environment steps after which the policy is evaluated."""
    own_python: bool = False
    """Whether the suite needs another Python environment."""
    package: str = ""
    """Name of the suite's package, if it is another."""


def robot_rl(*words: object) -> None:
    """Run a command as a user would; an error ends the benchmark."""
    subprocess.run([sys.executable, "-m", "robot_rl.cli.main", *map(str, words)], check=True)


def first_episode(out: Path, published: Path) -> int:
    """Return the seed of the first evaluation episode: a held-out seed only if `out` is the published file."""
    return evaluation_seed(out.resolve() == published.resolve())


def private_bus() -> None:
    """Give this program a bus of its own: another twin on this machine would hear the resets."""
    os.environ |= {
        "ROS_DOMAIN_ID": str(random.SystemRandom().randint(100, 199)),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
    }


class Stages:
    """Run each stage once and keep the stage's duration, s, in a file."""

    def __init__(self, folder: Path):
        self.file = folder / "stages.json"
        self.seconds: dict[str, float] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def __call__(self, name: str, *words: object) -> None:
        """Run a stage's robot-rl command unless it is finished."""
        if name not in self.seconds:
            begun = time.monotonic()
            robot_rl(*words)
            self.seconds[name] = round(time.monotonic() - begun, 1)
            write_json(self.file, self.seconds)


def thinned(rows: list[Any]) -> list[Any]:
    """Return about CURVE rows of a curve, including the last row."""
    return rows[:: -(-len(rows) // CURVE)] + rows[-1:] if rows else []


def versions(package: str, python: Path | None) -> dict[str, str]:
    """Return the versions of a suite and of its MuJoCo in the Python that runs it."""
    code = f"from importlib.metadata import version; print(version({package!r}), version('mujoco'))"
    told = subprocess.run([str(python or sys.executable), "-c", code], check=True, capture_output=True, text=True)
    return dict(zip((package, "mujoco"), told.stdout.split(), strict=True))


def measure(
    suite: Suite, task: str, work: Path, name: str, points: Sequence[int], episodes: int, first: int, seed: int,
    python: Path | None, more: str,
) -> dict[str, Any]:  # fmt: skip
    """Finish the stages of one task; return data, curve and evaluations, whose episode seeds start at `first`."""
    called, method = f"gym:{task}", suite.methods[name]
    folder = work / file_name(task)
    data, base, run = folder / f"data-{seed}", folder / f"{name}-base-{seed}", folder / f"{name}-{seed}"
    if any(method.collect != other.collect for other in suite.methods.values()):
        data = folder / f"{name}-data-{seed}"
    where = ["--env-python", python] if python else []
    common = [*where, "--seed", seed, "--resume"]
    if method.base or method.reads_demos:
        robot_rl("collect", called, *method.collect.split(), *common, "--out", data)
    train, demos = ["train", called, "--threads", 1, *common], ["--dataset", data]
    if method.base:
        robot_rl(*train, *demos, "--recipe", *method.base.split(), "--out", base)
        train += ["--base", base]
    train += demos if method.reads_demos else []
    evaluations = {}
    for steps in points:
        result = run / f"evaluation-{steps}.json"
        if not result.exists():
            words = [*method.train.split(), *more.split()]
            robot_rl(*train, "--recipe", *words, "--training.steps", steps, "--out", run)
            size = ("--episodes", episodes, "--num-envs", min(episodes, 10), "--seed", first)
            robot_rl("evaluate", run, *where, *size, "--out", result)
        found = json.loads(result.read_text())
        if found["seed"] != first:
            sys.exit(f"{result} is of episodes from {found['seed']} on, not {first}: name another --work or --out")
        evaluations[str(steps)] = {key: found[key] for key in KEPT if key in found}
    rows = [(r["step"], r["seconds"], r["train/success"]) for r in read_metrics(run)
            if r.get("train/success") is not None]  # fmt: skip
    dataset = Dataset(data) if data.exists() else None
    return {
        "recipe": method.train, "base": method.base, "options": more, "seed": seed,
        "data": {"options": method.collect, "episodes": dataset.num_episodes, "frames": dataset.num_frames}
        if dataset else {},
        "curve": {"columns": ["step", "seconds", "train/success"],
                  "rows": thinned(rows)},
        "evaluations": evaluations, "suite": versions(suite.package or suite.name, python), "provenance": provenance(),
    }  # fmt: skip


def main(suite: Suite, description: str | None) -> int:
    """Run the tasks and write benchmarks/results/<suite>.json after each task."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of datasets and runs")
    parser.add_argument("--task", nargs="*", default=list(suite.tasks), help="tasks; default: all of the benchmark")
    parser.add_argument("--method", default=next(iter(suite.methods)), choices=list(suite.methods), help="what learns")
    parser.add_argument("--points", nargs="*", type=int, default=list(suite.points), help="steps of evaluations")
    parser.add_argument("--episodes", type=int, default=50, help="episodes of an evaluation")
    parser.add_argument("--seed", type=int, default=0, help="seed of training")
    parser.add_argument("--train", default="", help="further options of train, to try the benchmark short")
    published = Path(__file__).parent / "results" / f"{suite.name}.json"
    parser.add_argument("--out", type=Path, default=published, help="another than the published: other episodes")
    parser.add_argument("--env-python", type=Path, required=suite.own_python, help="Python that has the suite")
    a = parser.parse_args()
    results = json.loads(a.out.read_text()) if a.out.exists() else {}
    for task in a.task:
        points = sorted(a.points)
        first = first_episode(a.out, published)
        found = measure(suite, task, a.work, a.method, points, a.episodes, first, a.seed, a.env_python, a.train)
        results.setdefault(task, {})[f"{a.method}-seed{a.seed}"] = found
        write_json(a.out, results)
        sys.stdout.write(f"{task}: {json.dumps(found['evaluations'])}\n")
    return 0
