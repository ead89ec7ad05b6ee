"""Videos of a policy in simulation."""

from __future__ import annotations

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
MOST = 25
"""Largest frame rate of a video; faster tasks skip frames."""


def record(
    policy: RunnablePolicy,
    task: str,
    path: Path,
    episodes: int,
    seed: int,
    execution: Execution | None = None,
    python: Path | None = None,
    **simulation: Any,
) -> list[str]:
    """Run `episodes` episodes, number k with seed + k, and write them one after the other to an mp4; return what each
    was asked, at last where that changed, in a task with instructions, which are also written above the frames.

    `python` and `simulation` are of `sim.make.make`. ConfigError for a task that cannot be drawn.
    """
    env, draw = filmed(task, python, **simulation)
    every = max(1, round(env.info.rate / MOST))
    policy = policy.beside(env) if isinstance(policy, ExpertPolicy) else policy
    runner = ChunkExecutor(policy, 1, execution, env.hold_action)
    asked: list[str] = []
    write_video(_frames(env, draw, runner, episodes, seed, every, asked), path, env.info.rate / every)
    env.close()
    return asked


def filmed(
    task: str, python: Path | None = None, episode_steps: int | None = None, **simulation: Any
) -> tuple[Any, Callable[[], np.ndarray]]:
    """Return one copy of a task, and what draws it; arguments are those of `sim.make.make`."""
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
    asked: list[str],
) -> Iterator[np.ndarray]:  # fmt: skip
    """Yield every few frames of some episodes, one at a time: a minute of them would take gigabytes."""
    for episode in range(episodes):
        rng = torch.Generator().manual_seed(seed)
        runner.reset()
        observation, _ = env.reset(seed=seed + episode)
        reads, done, step = LANGUAGE in observation, False, 0
        told = env.instruction(0) if reads else ""
        asked += [told] if reads else []
        while not done:
            if reads:
                asked[-1] = told = env.instruction(0)
            if step % every == 0:
                yield titled(draw(), told)
            step += 1
            observation, _, terminated, truncated, _ = env.step(runner.act(observation, rng))
            done = bool(terminated[0] | truncated[0])


def write_video(frames: Iterable[np.ndarray], path: Path, rate: float) -> None:
    """Write frames (H, W, 3) to an mp4, `rate` per second; the file appears only when complete."""
    replace_file(path, encode_video(frames, rate))
