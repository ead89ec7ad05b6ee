"""panda-turn: its demonstrator lifts the cube, more often than without rotations of the hand."""

import torch

from sim.demonstrators import make_expert
from sim.env import TaskEnv

EPISODES = 24


def success(turns: bool) -> float:
    env = TaskEnv("panda-turn", EPISODES, threads=2)
    expert = make_expert(env, "CLUMSY", 0)
    observation, _ = env.reset(seed=11)
    running, won = torch.ones(EPISODES, dtype=torch.bool), 0
    while running.any():
        action = expert.act(observation)
        if not turns:
            action[:, env.pipeline.actions.slice("tool_turn")] = 0.0
        observation, _, terminated, truncated, infos = env.step(action)
        won += int((infos["success"] & running).sum())
        running &= ~(terminated | truncated)
    env.close()
    return won / EPISODES


def test_the_demonstrator_lifts_the_cube_by_turning_the_hand() -> None:
    turning = success(turns=True)
    assert turning >= 0.8
    assert success(turns=False) <= turning - 0.1
