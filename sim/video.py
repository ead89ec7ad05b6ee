"""Videos of a policy in simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.base import ChunkRunner, Policy
from robot_rl.data.video import encode_video
from sim.env import TaskEnv

HEIGHT, WIDTH = 360, 480


def record(policy: Policy, task: str, path: Path, episodes: int, seed: int, **simulation: Any) -> None:
    """Play `episodes` episodes, number k drawn from seed + k, and write them one after the other to an mp4.

    `simulation` are keywords of `TaskEnv`, for example engine="genesis".
    """
    frames: list[np.ndarray] = []
    env = TaskEnv(task, 1, **simulation)
    camera = env.task.scene.cameras[0].name
    for episode in range(episodes):
        rng = torch.Generator().manual_seed(seed)
        runner = ChunkRunner(policy, 1)
        runner.reset()
        observation, _ = env.reset(seed=seed + episode)
        done = False
        while not done:
            frames.append(env.engine.render(0, camera, HEIGHT, WIDTH, "video"))
            observation, _, terminated, truncated, _ = env.step(runner.act(observation, rng))
            done = bool(terminated[0] | truncated[0])
    env.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(encode_video(frames, round(env.task.interface.controller.rate)))
    temporary.replace(path)
