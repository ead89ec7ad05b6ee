"""Videos of a policy in simulation."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.base import RunnablePolicy
from policies.execution import ChunkExecutor, Execution
from robot_rl.data.video import encode_video, titled
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.util.errors import ConfigError
from robot_rl.util.files import replace_file
from sim.env import TaskEnv
from sim.experts.policy import ExpertPolicy
from sim.foreign.gym_env import GymEnv
from sim.step.sampling import TRAINING
from sim.tasks import FOREIGN, TESTBED

HEIGHT, WIDTH = 360, 480
MAX_RATE = 25
"""Largest frame rate of a video, Hz; videos of tasks with a higher control rate skip frames."""


def record(
    policy: RunnablePolicy, task: str, path: Path, episodes: int, seed: int, execution: Execution | None = None,
    python: Path | None = None, **simulation: Any,
) -> list[str]:  # fmt: skip
    """Run `episodes` episodes, episode k with seed + k, into one mp4; return the last instruction of each episode.

    Instructions are also drawn above the frames; for a task without instructions, [] is returned. `python` and
    `simulation` are arguments of `sim.make.make`. Raises ConfigError for a task that cannot be rendered.
    """
    env, draw = filmed(task, python, **simulation)
    every = max(1, round(env.info.rate / MAX_RATE))
    policy = policy.for_env(env) if isinstance(policy, ExpertPolicy) else policy
    runner = ChunkExecutor(policy, 1, execution, env.hold_action)
    instructions: list[str] = []
    write_video(_frames(env, draw, runner, episodes, seed, every, instructions), path, env.info.rate / every)
    env.close()
    return instructions


def filmed(
    task: str, python: Path | None = None, episode_steps: int | None = None, **simulation: Any
) -> tuple[Any, Callable[[], np.ndarray]]:
    """Return one copy of a task and a function that draws its frame. The arguments are those of `sim.make.make`."""
    if task.startswith(TESTBED):
        raise ConfigError(f"{task} has no pictures; leave out --video")
    if task.startswith(FOREIGN):
        drawn = simulation.get("instruction_set", TRAINING)
        gym = GymEnv(task, 1, python, drawn, filmed=True, steps=episode_steps or 0)
        return gym, gym.frame
    env = TaskEnv(task, 1, **simulation)
    camera = env.task.scene.cameras[0].name
    return env, lambda: env.engine.render(0, camera, HEIGHT, WIDTH, "video")


def _frames(
    env: Any, draw: Callable[[], np.ndarray], runner: ChunkExecutor, episodes: int, seed: int, every: int,
    instructions: list[str],
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yield a frame of every `every`-th control period. A list of the frames of one minute would take gigabytes."""
    for episode in range(episodes):
        rng = torch.Generator().manual_seed(seed)
        runner.reset()
        observation, _ = env.reset(seed=seed + episode)
        reads, done, step = LANGUAGE in observation, False, 0
        instructions += [""] if reads else []
        while not done:
            if reads:
                instructions[-1] = env.instruction(0)
            if step % every == 0:
                yield titled(draw(), instructions[-1] if reads else "")
            step += 1
            observation, _, terminated, truncated, _ = env.step(runner.act(observation, rng))
            done = bool(terminated[0] | truncated[0])


def write_video(frames: Iterable[np.ndarray], path: Path, rate: float) -> None:
    """Write frames (H, W, 3) to an mp4 at `rate` frames/s; the file appears when it is complete."""
    replace_file(path, encode_video(frames, rate))
