"""Run checks by `robot-rl` commands, in folders from which an interrupted run of a check continues.

WORK/<check>/data/seed-0            the dataset of a seed
             base-data/seed-0       that of the base, if it has its own
             base/seed-0            the base policy of the arms
             method/seed-0  control/seed-0  second/seed-0
             logs/method-seed-0.log the command and its output
WORK/results.json
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import robot_rl
from real.launching.child import die_with
from robot_rl.bench.checks import EXPERT, Arm, Check
from robot_rl.recipes import recipes
from robot_rl.report.folders import read_json
from robot_rl.training.run import SEED, has_ended
from robot_rl.util.errors import ConfigError
from robot_rl.util.seeds import evaluation_seed

ROOT = Path(robot_rl.__file__).parents[1]
"""Working directory of the commands, since flags of a check may name files of the repository."""
Progress = Callable[[int, int, str], None]
"""Callback with the number of finished steps, the total number, and a description of the current step."""


@dataclass(frozen=True)
class Step:
    """One command of a check."""

    part: str
    """Part of the check: data, base, control, second or method. A failure of data or base fails all arms."""
    seed: int
    words: tuple[str, ...]
    """Arguments of `robot-rl`."""
    made: Path
    """Folder that the command creates. After an interrupted run, the folder has the work so far."""
    log: Path
    done: Callable[[], bool]


def steps(name: str, check: Check, work: Path, seed: int, episodes: int, published: bool = False) -> Iterator[Step]:
    """Yield the commands of one seed in order; every command continues its interrupted run.

    Arms are evaluated on held-out episodes if the results will be `published`, else on development episodes.
    """
    folder, common = work / name, ("--seed", str(seed), "--resume")
    data = folder / "data" / f"{SEED}{seed}"
    general = folder / "base-data" / f"{SEED}{seed}" if check.base_data else data

    def step(part: str, made: Path, done: Callable[[], bool], *words: object) -> Step:
        log = folder / "logs" / f"{part.replace(' ', '-')}-{SEED}{seed}.log"
        return Step(part.split()[0], seed, tuple(map(str, words)), made, log, done)

    def collect(part: str, made: Path, how: tuple[str, ...]) -> Step:
        note = made.with_name(f"{made.name}.facts")
        words = ("collect", *check.collected(how), *common, "--out", made, "--log", note)
        return step(part, made, lambda: (note / "dataset.json").is_file(), *words)

    def train(part: str, arm: Arm, base: Path | None = None) -> Step:
        run, needs = folder / part / f"{SEED}{seed}", required_inputs(arm, optional=True)
        shown = general if part == "base" else data
        inputs: list[object] = ["--dataset", shown] if "demonstrations" in needs and check.data else []
        inputs += ["--base", base] if "base" in needs and base else []
        words = ("train", check.task, "--recipe", arm.recipe, *arm.flags, *inputs, *common, "--threads", 1)
        return step(part, run, lambda: has_ended(run), *words, "--out", run)

    def evaluate(part: str, arm: Arm) -> Step:
        run = folder / part / f"{SEED}{seed}"
        file, first = run / "evaluation.json", evaluation_seed(published)
        how = ("--episodes", episodes, "--num-envs", min(100, episodes), "--seed", first)
        who = (f"expert:{check.task}", *arm.flags, "--out", file) if arm.recipe == EXPERT else (run,)
        if check.evaluate:
            who = (*who, *check.evaluate, *(() if "--out" in who else ("--out", file)))
        words = ("evaluate", *who, *how, "--threads", 1)
        return step(f"{part} evaluated", run, lambda: _evaluated(file, episodes, first), *words)

    if check.data:
        yield collect("data", data, check.data)
    if check.base_data:
        yield collect("data of base", general, check.base_data)
    shared = check.base == check.control
    base = None if check.base is None else folder / ("control" if shared else "base") / f"{SEED}{seed}"
    if check.base is not None and not shared:
        yield train("base", check.base)
    for part, arm in check.arms.items():
        if arm.recipe != EXPERT:
            yield train(part, arm, None if part == "control" and shared else base)
        yield evaluate(part, arm)


def required_inputs(arm: Arm, optional: bool = False) -> tuple[str, ...]:
    """Return the inputs that an arm's recipe needs with the arm's flags; if `optional`, also inputs that it may use."""
    import tyro

    recipe, _ = tyro.cli(recipes.get(arm.recipe), args=list(arm.flags), return_unknown_args=True)
    return (*recipe.needs, *(recipe.may_use if optional else ()))


def _evaluated(file: Path, episodes: int, first: int) -> bool:
    content = read_json(file, dict, [])
    return (content.get("episodes"), content.get("seed")) == (episodes, first) and "per_episode" in content


class Runner:
    """Run steps as child processes, which end when this process ends; `stop` lets the steps save their work."""

    def __init__(self, work: Path):
        self.work = work
        self.running: set[subprocess.Popen[bytes]] = set()
        self.stopped = threading.Event()
        self.lock = threading.Lock()

    def run(self, step: Step) -> str:
        """Run a step unless it is done; return "" on success, else the exit status and the last lines of its log.

        ConfigError if another command made the step's folder, for example before a change of the check's flags.
        """
        line = f"$ robot-rl {shlex.join(step.words)}".replace(str(self.work), "WORK")
        kept = step.made.exists() and step.log.exists()
        before = step.log.read_text(errors="replace").partition("\n")[0] if kept else line
        if before != line and step.words[0] != "evaluate":
            raise ConfigError(
                f"{step.made} was made by another command ({before}), and this one is {line}; remove that folder, or "
                "name another --work"
            )
        if kept and before == line and step.done():
            return ""
        step.log.parent.mkdir(parents=True, exist_ok=True)
        with open(step.log, "ab" if kept and before == line else "wb") as log:
            log.write(f"{line}\n".encode())
            log.flush()
            code = self.execute(step, log)
        if code == 0 and step.done():
            return ""
        lines = step.log.read_text(errors="replace").strip().splitlines()[-3:]
        return f"status {code}: {' / '.join(lines)}".replace(str(self.work), "WORK")

    def execute(self, step: Step, log: IO[bytes]) -> int:
        """Run a step's command, with its output in `log`; return the exit status."""
        with self.lock:
            if self.stopped.is_set():
                return 128 + signal.SIGTERM
            process = subprocess.Popen(
                [sys.executable, "-m", "robot_rl.cli.main", *step.words], cwd=ROOT,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0,
                env=os.environ | {"OMP_NUM_THREADS": "1"}, preexec_fn=die_with(os.getpid(), signal.SIGKILL),
            )  # fmt: skip
            self.running.add(process)
        code = process.wait()
        with self.lock:
            self.running.discard(process)
        return code

    def close(self) -> None:
        """Let go of what runs the steps."""

    def stop(self) -> None:
        """End the running steps with SIGTERM, on which they save their work; start no further step."""
        with self.lock:
            self.stopped.set()
            for process in self.running:
                process.terminate()


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt with the signal number on SIGINT and SIGTERM.

    This holds also if the parent process ignored SIGINT, as a shell script does for its background jobs.
    """

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_check(
    name: str, check: Check, runner: Runner, seeds: Sequence[int], episodes: int, jobs: int, progress: Progress,
    published: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Run the unfinished steps of a check; return the last lines of the log by name of each failed part.

    Seeds run in parallel in `jobs` threads. KeyboardInterrupt stops the running commands and waits until they end.
    """
    finished: list[Step] = []
    chains = [list(steps(name, check, runner.work, seed, episodes, published)) for seed in seeds]
    total = sum(map(len, chains))
    errors: dict[str, str] = {}

    def follow(chain: list[Step]) -> None:
        failed: set[str] = set()
        for step in chain:
            blocking = {"data", "base", step.part} | ({"control"} if check.base == check.control else set())
            if not runner.stopped.is_set() and not failed & blocking:
                progress(len(finished), total, f"{name}: {step.part}, seed {step.seed}")
                if message := runner.run(step):
                    failed.add(step.part)
                    errors.setdefault(step.part, f"seed {step.seed}, {message}")
            finished.append(step)

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in [pool.submit(follow, chain) for chain in chains]:
            future.result()
    except BaseException:
        runner.stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return errors
