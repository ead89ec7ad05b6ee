"""`robot-rl bench sim` measures simulation speed, `bench methods` compares each learning method with its control, and
`bench peers` our learners with those of other libraries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robot_rl.cli.options import Json, Ray
from robot_rl.util.limits import NonNegativeInt, PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from robot_rl.bench.results import Series


@dataclass
class Sim:
    """Compare the steps per second of task environments with bare physics and with Gymnasium's vector environments.

    Bare physics is `mujoco.Batch` with the task's model, states (including delay lines and solver) and commands. The
    measurements alternate, so that other load on the machine affects all of them."""

    tasks: tuple[str, ...] = ("panda-lift", "go2-velocity")
    """Tasks to measure."""
    sizes: tuple[PositiveInt, ...] = (256, 1024)
    """Numbers of parallel environments for the comparison with bare physics."""
    peers: NonNegativeInt = 64
    """Number of parallel environments for the comparison with Gymnasium; 0 skips this comparison."""
    seconds: PositiveFloat = 10.0
    """Duration of each measurement, s."""
    threads: PositiveInt = 2
    """Number of torch threads; the physics uses all cores."""
    json: Json = False

    def run(self) -> int:
        import torch

        from robot_rl.cli.console import bar, show
        from robot_rl.training.run import provenance
        from sim.tasks import tasks

        torch.set_num_threads(self.threads)
        for name in self.tasks:
            tasks.get(name)
        jobs: dict[str, Callable[[], dict[str, float]]] = {}
        for name in self.tasks:
            for size in self.sizes:
                jobs[f"{name}, {size}"] = partial(share_of_physics, name, size, self.seconds)
            if self.peers:
                jobs[f"{name}, {self.peers}, gymnasium"] = partial(against_gymnasium, name, self.peers, self.seconds)
        rows: dict[str, Any] = {}
        with bar("bench sim") as update:
            for name, measure in jobs.items():
                rows[name] = measure()
                update(len(rows), len(jobs), name)
        if self.json:
            show(rows | {"provenance": provenance()}, True)
        else:
            for name, row in rows.items():
                show(row, False, name)
        return 0


class Bare:
    """Bare physics: a `mujoco.Batch` with copies of an engine's model."""

    def __init__(self, engine: Any):
        from sim.rendering.gl import batch

        self.engine, self.batch = engine, batch.Batch(engine.model, nsim=engine.num_envs)

    def start(self) -> None:
        """Copy the engine's state: positions, velocities, delay lines and the solver's initial forces."""
        for key, values in self.engine.state_dict().items():
            kind, name = key.split(".", 1)
            if kind == "state":
                self.batch.bind(name)[:] = values

    def follow(self, commands: Sequence[Any]) -> None:
        """Step the physics through arrays of controls (envs, steps, actuators) from the engine's `recording`."""
        for control in commands:
            self.batch.rollout(control.shape[1], control=control, record=())


def share_of_physics(task: str, size: int, seconds: float) -> dict[str, float]:
    """Return steps/s of the task environment and of bare physics, and the first divided by the second."""
    import torch

    from sim.env import TaskEnv

    env = TaskEnv(task, size)
    env.reset(seed=0, options={"stagger": True})
    rng = torch.Generator().manual_seed(0)
    actions = torch.rand(64, size, env.pipeline.actions.size, generator=rng) * 2 - 1
    engine: Any = env.engine
    bare = Bare(engine)
    commands: list[Any] = []

    def act() -> None:
        for k in range(_ROUND):
            env.step(actions[(steps + k) % len(actions)])

    ours, physics, steps = 0.0, 0.0, 0
    while ours + physics < seconds:
        bare.start()
        commands.clear()
        with engine.recording(commands):
            first = _timed(act)
        second = _timed(lambda: bare.follow(commands))
        if steps:  # the first round is a warm-up
            ours, physics = ours + first, physics + second
        steps += _ROUND
    env.close()
    counted = size * (steps - _ROUND)
    return {"steps_per_second": counted / ours, "bare_physics": counted / physics, "share": physics / ours}


def against_gymnasium(task: str, size: int, seconds: float) -> dict[str, float]:
    """Return steps/s of the task's vector environment and of Gymnasium's (sync, async), and the first over the best."""
    import gc

    import gymnasium as gym

    from sim.gym import IDS

    gc.collect()  # a forked process that frees an engine would wait forever for the parent's threads
    identity = next(name for name, of in IDS.items() if of == task)
    kinds = {"ours": "vector_entry_point", "sync": "sync", "async": "async"}
    envs = {kind: gym.make_vec(identity, num_envs=size, vectorization_mode=mode) for kind, mode in kinds.items()}
    spent = dict.fromkeys(envs, 0.0)
    steps = dict.fromkeys(envs, 0)
    for env in envs.values():
        env.reset(seed=0)
        env.action_space.seed(0)
        _burst(env.step, env.action_space.sample)  # warm-up
    while min(spent.values()) < seconds:
        for kind, env in envs.items():
            if spent[kind] < seconds:
                spent[kind] += _burst(env.step, env.action_space.sample)
                steps[kind] += _BURST
    for env in envs.values():
        env.close()
    rate = {kind: size * steps[kind] / spent[kind] for kind in envs}
    ratio = rate["ours"] / max(rate["sync"], rate["async"])
    return {f"{kind}_steps_per_second": r for kind, r in rate.items()} | {"ratio": ratio}


_ROUND, _BURST = 8, 10
"""Environment steps per time measurement, against bare physics and against Gymnasium."""


def _burst(step: Callable[[Any], Any], sample: Callable[[], Any]) -> float:
    actions = [sample() for _ in range(_BURST)]
    return _timed(lambda: [step(action) for action in actions])


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass
class Methods:
    """Train and evaluate each method and its control on a task on which the two should differ, with the same data,
    seeds and episodes. After Ctrl-C or a kill, the same command continues and does not repeat finished runs."""

    only: tuple[str, ...] = ()
    """Checks (a method and its control) to run; default: all checks."""
    seeds: PositiveInt = 3
    """Number of training seeds: 0, 1, ..."""
    work: Path = Path("runs/methods")
    """Folder of the runs, their logs and results.json."""
    jobs: PositiveInt = 1
    """Number of seeds to train in parallel, one core each; with --ray all are."""
    ray: Ray = ""
    episodes: PositiveInt = 200
    """Evaluation episodes per seed: held-out episodes with --publish, else development episodes."""
    publish: bool = False
    """Also write the results to benchmarks/results/methods.json."""
    table: bool = False
    """Run nothing; write the table of published results to docs/methods.md."""
    json: Json = False

    def run(self) -> int:
        from robot_rl.bench.results import METHODS

        return run_series(self, METHODS)


@dataclass
class Peers(Methods):
    """Train and evaluate our learners and those of other libraries on the same tasks, with the same steps, networks and
    seeds. A page of learning curves is written for each row. After Ctrl-C or a kill, the same command continues."""

    only: tuple[str, ...] = ()
    """Rows of the table to run; default: all rows."""
    seeds: PositiveInt = 5
    """Number of training seeds: 0, 1, ..."""
    work: Path = Path("runs/peers")
    """Folder of the runs, their logs, pages of curves, and results.json."""
    publish: bool = False
    """Also write the results to benchmarks/results/peers.json."""
    table: bool = False
    """Run nothing; write the table of published results to docs/peers.md."""

    def run(self) -> int:
        from robot_rl.bench.peers import PEERS, require
        from robot_rl.util.errors import ConfigError

        if self.ray:
            raise ConfigError("--ray is for bench methods: the peers are in environments of this computer")
        if not self.table:
            require(name for name in self.only or PEERS.checks if name in PEERS.checks)
        return run_series(self, PEERS)


def run_series(command: Methods, series: Series) -> int:
    """Run the checks of a series that a command names; show and keep their records."""
    from robot_rl.bench.cluster import ClusterRunner
    from robot_rl.bench.methods import Runner, interrupted_by_signals, run_check
    from robot_rl.bench.results import check_size, judge, merge, publish, require_commit, write_table
    from robot_rl.cli.console import bar, show
    from robot_rl.report.comparison import compare, read_arms, write_comparison
    from robot_rl.util.errors import ConfigError, Interrupted, UnknownName

    if command.table:
        if command.only:
            raise ConfigError("--table writes the whole table; leave out --only")
        show({"written": str(write_table(series))}, command.json)
        return 0
    for name in command.only:
        if name not in series.checks:
            raise UnknownName("check", name, series.checks)
    names = command.only or tuple(series.checks)
    if command.publish:
        require_commit()
        check_size(names, command.seeds, command.episodes, series.published)
    work = command.work.resolve()
    seeds, jobs = range(command.seeds), command.seeds if command.ray else command.jobs
    runner = ClusterRunner(work, command.ray) if command.ray else Runner(work)
    records: dict[str, Any] = {}
    try:
        with interrupted_by_signals():
            for name in names:
                check = series.checks[name]
                with bar(f"bench {len(records) + 1}/{len(names)}") as update:
                    todo = name, check, runner, seeds, command.episodes, jobs
                    errors = run_check(*todo, update, command.publish)
                records[name] = judge(name, check, work, seeds, errors)
                merge(work / "results.json", {name: records[name]})
                if command.publish:
                    publish({name: records[name]}, series.published)
                if check.parity and not errors:
                    arms = read_arms([work / name / part for part in check.arms])
                    for arm in arms:
                        arm.name = arm.recipe.rpartition(":")[2]  # of both libraries, on the page
                    write_comparison(arms, compare(arms, check.figure), work / f"{name}.html")
    except KeyboardInterrupt as error:
        said = f"stopped; what had finished is in {work}: the same command goes on"
        raise Interrupted(said, error.args[0]) from None
    finally:
        runner.close()
    shown = records if command.json else {name: _line(record) for name, record in records.items()}
    show(shown, command.json, "checks")
    return int(any(record["verdict"] == "error" for record in records.values()))


def _line(record: dict[str, Any]) -> str:
    """Return a check's verdict, means and difference in one line, or the errors of its failed runs."""
    arms = [record[part] for part in ("method", "control", "second") if part in record]
    if "difference" not in record:
        return "; ".join(f"{arm['recipe']}: {arm['error']}" for arm in arms if "error" in arm)
    shown = ", ".join(f"{arm['recipe']} {_interval(arm)}" for arm in arms)
    shown += f", difference {_interval(record['difference'])}"
    if "second" in record:
        shown += f" and {_interval(record['second_difference'])}"
    differ = "; ".join(f"{name} {first} and {second}" for name, (first, second) in record["unlike"].items())
    return f"{record['verdict']}: {shown}" + f"; {differ}" * bool(differ)


def _interval(row: dict[str, Any]) -> str:
    return f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"
