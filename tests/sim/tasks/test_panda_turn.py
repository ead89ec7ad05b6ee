"""The demonstrator of panda-turn lifts the cube, and is better at it for turning the hand."""

from __future__ import annotations

import torch

from sim.demonstrators import make_expert
from sim.env import TaskEnv

EPISODES = 24


def success(turns: bool) -> float:
    env = TaskEnv("panda-turn", EPISODES, threads=2)
    expert = make_expert(env, "CLUMSY", 0)
    observation, _ = env.reset(seed=11)
    open_, won = torch.ones(EPISODES, dtype=torch.bool), 0
    while open_.any():
        action = expert.act(observation)
        if not turns:
            action[:, env.pipeline.actions.slice("tool_turn")] = 0.0
        observation, _, terminated, truncated, infos = env.step(action)
        won += int((infos["success"] & open_).sum())
        open_ &= ~(terminated | truncated)
    env.close()
    return won / EPISODES


def test_the_demonstrator_lifts_the_cube_and_turning_helps() -> None:
    turning = success(turns=True)
    assert turning >= 0.8
    assert success(turns=False) <= turning - 0.1, "the same hand without its rotations"
