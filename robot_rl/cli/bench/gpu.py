"""`robot-rl bench gpu`: measure physics, environments and learning on a GPU, in one go of a few minutes."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from robot_rl.cli.options import Json
from robot_rl.util.limits import NonNegativeInt, PositiveFloat, PositiveInt

WALKS = 0.2
"""Mean velocity error below which a Go2 walks, m/s."""
_ROUND = 8
"""Environment steps per time measurement."""


@dataclass
class Gpu:
    """Measure environment steps per second and their share of bare physics, the time until a Go2 walks, and gradient
    steps per second of SAC, on a GPU or, far slower, on the CPU.

    Bare physics is the engine's own step alone, alternating with the environment's. Results are written to --out as
    they come. What would begin after --budget seconds is left out, and so is what fails; the result says why."""

    task: str = "go2-velocity"
    """Task of the environments."""
    engines: tuple[str, ...] = ("warp", "genesis")
    """Engines to measure; learning to walk uses the first."""
    sizes: tuple[PositiveInt, ...] = (1024, 4096, 16384)
    """Numbers of parallel environments."""
    seconds: PositiveFloat = 5.0
    """Duration of each measurement, s."""
    walk: NonNegativeInt = 4096
    """Number of parallel environments in which PPO learns to walk; 0: none."""
    walk_steps: PositiveInt = 30_000_000
    """Largest number of environment steps of learning to walk."""
    updates: NonNegativeInt = 500
    """Number of SAC's gradient steps; 0: none."""
    budget: PositiveFloat = 360.0
    """Time for all measurements, s."""
    device: str = "auto"
    """Device: cuda, cpu, or auto for cuda if available."""
    out: Path | None = None
    """JSON file of the results; default: none."""
    json: Json = False

    def run(self) -> int:
        from robot_rl.cli.console import bar, show
        from robot_rl.training.run import provenance, write_json
        from robot_rl.util.devices import find_device
        from sim.engines import engines

        device, end = find_device(self.device), time.monotonic() + self.budget
        jobs: dict[str, Callable[[], dict[str, Any]]] = {}
        for engine in self.engines:
            engines.get(engine)
            for size in self.sizes:
                jobs[f"{engine}, {size}"] = partial(share_of_physics, self.task, engine, size, device, self.seconds)
            if engine == self.engines[0]:
                if self.updates:
                    jobs["sac"] = partial(sac_updates, device, self.updates)
                if self.walk:
                    walk = partial(seconds_to_walk, engine, self.walk, self.walk_steps, device, end)
                    jobs[f"walk, {self.walk}"] = walk
        result: dict[str, Any] = {"device": device, "task": self.task}
        with bar("bench gpu") as update:
            for done, (name, measure) in enumerate(jobs.items(), 1):
                try:
                    result[name] = measure() if time.monotonic() < end else {"left_out": "the budget was used up"}
                except Exception as error:  # of an engine: the other measurements go on
                    result[name] = {"failed": f"{type(error).__name__}: {error}"}
                if self.out:
                    write_json(self.out, result | {"provenance": provenance()})
                update(done, len(jobs), name)
        if self.json:
            show(result | {"provenance": provenance()}, True)
        else:
            for name, row in result.items():
                show(row if isinstance(row, dict) else {name: row}, False, name)
        return int(any("failed" in row for row in result.values() if isinstance(row, dict)))


def wait(device: str) -> float:
    """Wait for the device; return the time, s."""
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def share_of_physics(task: str, engine: str, size: int, device: str, seconds: float) -> dict[str, float]:
    """Return the time to build, s, environment steps/s with random actions, the steps/s that the engine's own step
    would allow, and the first speed divided by the second."""
    import torch

    from sim.env import TaskEnv

    start = wait(device)
    env = TaskEnv(task, size, engine=engine, device=device)
    env.reset(seed=0, options={"stagger": True})
    physics: Any = env.engine
    rng = torch.Generator().manual_seed(0)
    actions = (torch.rand(64, size, env.pipeline.actions.size, generator=rng) * 2 - 1).to(env.device)
    each = round(1 / (env.rate * env.task.scene.timestep))
    ours, bare, steps = 0.0, 0.0, 0
    built = 0.0
    while ours + bare < seconds:
        begun = wait(device)
        for k in range(_ROUND):
            env.step(actions[(steps + k) % len(actions)])
        middle = wait(device)
        for _ in range(_ROUND * each):
            physics.world.step()
        if steps:
            ours, bare = ours + middle - begun, bare + wait(device) - middle
        else:  # the first round compiles
            built = wait(device) - start
        steps += _ROUND
    env.close()
    counted = size * (steps - _ROUND)
    return {
        "build_seconds": built, "steps_per_second": counted / ours, "bare_physics": counted / bare,
        "share": bare / ours, "divergences": env.divergences,
    }  # fmt: skip


def sac_updates(device: str, count: int) -> dict[str, float]:
    """Return gradient steps/s of SAC as in `benchmarks.sac_speed`, with sampling: 2x256 networks, batch 256."""
    import torch

    from policies.actor import GaussianPolicy
    from policies.base import Size
    from robot_rl.data.replay import Replay
    from robot_rl.data.sources import sample_batches
    from robot_rl.learning.algorithms.actor_critic import ActorCritic
    from robot_rl.recipes.sac import SAC
    from robot_rl.training.run import learning_floats

    recipe, rng, rows, size = SAC(), torch.Generator().manual_seed(0), 10_000, Size(17, 6)
    agent = ActorCritic(GaussianPolicy(size, recipe.policy).to(device), recipe.agent)
    replay = Replay(rows + 10, 1, agent.columns, agent.device)
    observation, action = torch.randn(rows + 1, size.observation, generator=rng), torch.rand(rows, 6, generator=rng)
    episode = {"observation.state": observation, "action": 2 * action - 1, "reward": torch.randn(rows, generator=rng)}
    replay.add_episode(episode | {"terminated": torch.zeros(rows, dtype=torch.bool)})
    spent = 0.0
    with learning_floats():
        for counted in (max(count // 10, 3), count):  # the first turn is a warm-up
            start = wait(device)
            for _ in range(counted):
                agent.update(sample_batches([(replay, 256)], 1, agent.sampling, rng)[0])
            spent = wait(device) - start
    return {"updates_per_second": count / spent}


def seconds_to_walk(engine: str, size: int, steps: int, device: str, end: float) -> dict[str, Any]:
    """Return the training time after which PPO's Go2 walks, s, as `robot-rl train` logs it; None if it did not in
    `steps` environment steps or until the monotonic time `end`."""
    from robot_rl.training.run import read_metrics

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "walk"
        words = ["train", "go2-velocity", "--recipe", "ppo", "--engine", engine, "--device", device, "--out", str(run)]
        words += ["--training.num-envs", str(size), "--training.steps", str(steps)]
        with open(Path(folder) / "log", "w+") as log:
            process = subprocess.Popen([sys.executable, "-m", "robot_rl.cli.main", *words], stdout=log, stderr=log)
            ended = False
            try:
                while not ended:
                    time.sleep(0.5)
                    ended = process.poll() is not None or time.monotonic() > end
                    rows = read_metrics(run)
                    ended |= bool(rows) and rows[-1]["env/velocity_error"] < WALKS
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            if not rows:
                return {"seconds": None, "log": log.read()[-500:]}
    last = rows[-1]
    walks = last["env/velocity_error"] < WALKS
    return {
        "seconds": last["seconds"] if walks else None, "velocity_error": last["env/velocity_error"],
        "environment_steps": last["step"], "steps_per_second": last["train/steps_per_second"],
        "update_seconds": last["train/update_seconds"],
    }  # fmt: skip
