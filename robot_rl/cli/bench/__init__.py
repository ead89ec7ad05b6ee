"""`robot-rl bench sim`: measure the simulation speed of tasks against other libraries in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from robot_rl.cli.options import Json
from robot_rl.util.limits import NonNegativeInt, PositiveFloat, PositiveInt


@dataclass
class Sim:
    """Measure environment steps per second against bare physics and Gymnasium's vector environments.

    Bare physics is `mujoco.Batch` with the same model, states (including delay lines and solver) and commands. The
    measurements alternate, so that other load on the machine affects all of them."""

    tasks: tuple[str, ...] = ("panda-lift", "go2-velocity")
    """Tasks to measure."""
    sizes: tuple[PositiveInt, ...] = (256, 1024)
    """Numbers of environments for the comparison with bare physics."""
    peers: NonNegativeInt = 64
    """Number of environments for the comparison with Gymnasium; 0 skips it."""
    seconds: PositiveFloat = 10.0
    """Duration of each measurement, s."""
    threads: PositiveInt = 2
    """Threads outside the physics, which uses all cores."""
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
        """Step through controls (n, steps, actuators) from `recording`."""
        for control in commands:
            self.batch.rollout(control.shape[1], control=control, record=())


def share_of_physics(task: str, size: int, seconds: float) -> dict[str, float]:
    """Return steps/s of the task environment and of bare physics, and their ratio."""
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
    """Return steps/s of the task environment and of Gymnasium's vector environments of the same registered task."""
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
    return {f"{kind}_steps_per_second": r for kind, r in rate.items()} | {
        "ratio": rate["ours"] / max(rate["sync"], rate["async"])
    }


_ROUND, _BURST = 8, 10
"""Environment steps per time measurement."""


def _burst(step: Callable[[Any], Any], sample: Callable[[], Any]) -> float:
    actions = [sample() for _ in range(_BURST)]
    return _timed(lambda: [step(action) for action in actions])


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
