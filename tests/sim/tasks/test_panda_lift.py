"""panda-lift: its demonstrator succeeds, and holding still does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sim.env import TaskEnv
from sim.experts.lift import STEADY, LiftExpert
from sim.scenes import Camera

Build = Callable[..., Any]


def expert(env: TaskEnv, seed: int = 0) -> LiftExpert:
    return LiftExpert(env.pipeline.observer.spec, env.pipeline.controller, env.num_envs, STEADY, seed)


def test_the_interface_has_the_cameras_of_the_scene(task: Build) -> None:
    scene = replace(task().scene, cameras=(Camera("wrist", (1, 0, 1), (0, 0, 0)), Camera("side", (0, 1, 1), (0, 0, 0))))
    assert replace(task(), scene=scene).interface.cameras == ("wrist", "side")


def test_the_steady_expert_lifts_the_cube(task: Build) -> None:
    env = TaskEnv(task(), 32, threads=1)
    operator = expert(env)
    observation, _ = env.reset(seed=500)
    first, done = torch.zeros(32, dtype=torch.bool), torch.zeros(32, dtype=torch.bool)
    while not done.all():
        observation, _, terminated, truncated, _ = env.step(operator.act(observation))
        ended = terminated | truncated
        first |= terminated & ~done
        done |= ended
        operator.reset(ended.nonzero().squeeze(-1))
    assert first.float().mean() > 0.9
    assert env.divergences == 0


def test_the_expert_resets_ended_episodes_only(task: Build) -> None:
    env = TaskEnv(task(), 4, threads=1)
    operator = expert(env)
    aim, speed = operator.aim.clone(), operator.speed.clone()
    operator.closing[:] = 9
    operator.reset(torch.tensor([2]))
    assert operator.closing.tolist() == [9, 9, 0, 9]
    kept = torch.tensor([0, 1, 3])
    assert torch.equal(operator.aim[kept], aim[kept]) and not torch.equal(operator.aim[2], aim[2])
    assert torch.equal(operator.speed[kept], speed[kept])
