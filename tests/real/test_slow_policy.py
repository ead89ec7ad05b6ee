"""A policy that takes longer than a control period: the robot moves, holds, and no watchdog stops it."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.base import Chunk, Observation, Prefix
from policies.execution import Execution, InferenceHung
from real.control.stop import STALE_GOAL
from robot_rl.evaluation import evaluate
from sim.tasks import tasks

LIFT = replace(tasks.get("panda-lift").interface, horizon=60, success="", failure="")
Build = Callable[..., Any]
SLOW = 0.8  # duration of a slow inference, s
TRIPS = 0.6  # goal time-out of these tests, s: shorter than a slow inference, longer than this machine stands still


class Slow:
    """Policy that moves to the left with open fingers, after a delay."""

    horizon, execute = 32, 8

    def __init__(self, seconds: float):
        self.seconds, self.threads = seconds, set[str]()

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        self.threads.add(threading.current_thread().name)
        time.sleep(self.seconds)
        return Chunk(torch.tensor([0.0, 0.2, 0.0, 1.0]).expand(1, self.horizon, -1))

    def reset(self, ids: Tensor | None = None) -> None:
        pass


def run(env: Any, policy: Slow, execution: Execution | None) -> tuple[dict[str, Any], dict[str, int], float]:
    """Return summary, events of the loop, and the tool's motion to the left, m."""
    places: list[float] = []
    evaluate(policy, env, 1, 0, lambda *_: places.append(float(env.state.tool_position[0, 1])), None, execution)
    return env.summary(), env.loop.events.counts, places[-1] - places[0]


@pytest.mark.realtime
@pytest.mark.parametrize(("mode", "seconds"), [("receding", 0.0), ("receding", SLOW), ("asynchronous", SLOW)])
def test_no_watchdog_stops_the_robot(robot_env: Any, robot: Any, steady: Any, mode: Any, seconds: float) -> None:
    env = robot_env(LIFT, safety=replace(steady, goal_timeout=TRIPS))
    execution = Execution(mode, background=True, patience=0.025 if mode == "receding" else 0.0, period=env.period)
    summary, events, moved = run(env, policy := Slow(seconds), execution)
    assert STALE_GOAL not in events and not env.loop.stopped and policy.threads == {"inference"}
    assert summary["inference_ms"]["p99"] < 500 * SLOW, "the control loop never waits"
    assert moved > 0.03
    jumps = np.abs(np.diff(np.array(robot.commands), axis=0)).max(0)
    limit = env.pipeline.shield.velocity[0].numpy() * env.pipeline.tick
    assert (jumps <= limit + 1e-6).all()


def test_slow_inference_in_the_control_loop_makes_goals_stale(robot_env: Any, robot: Any, steady: Any) -> None:
    env = robot_env(replace(LIFT, horizon=5), safety=replace(steady, goal_timeout=TRIPS))
    assert run(env, Slow(SLOW), None)[1][STALE_GOAL] > 0


@pytest.mark.realtime
def test_robot_holds_after_a_hung_policy(robot_env: Build, robot: Any, steady: Any, eventually: Build) -> None:
    release = threading.Event()

    class Hanging(Slow):
        def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
            release.wait(60)
            return super().infer(observation, rng, prefix)

    env = robot_env(LIFT, safety=replace(steady, goal_timeout=TRIPS))
    with pytest.raises(InferenceHung, match="has not answered"):
        run(env, Hanging(0.0), Execution("asynchronous", background=True, limit=0.5))
    assert STALE_GOAL not in env.loop.events.counts, "goals to hold are posted until then"
    eventually(lambda: env.loop.events.counts.get(STALE_GOAL), "the watchdog")
    count = len(robot.commands)
    eventually(lambda: len(robot.commands) > count + 20)
    assert np.ptp(robot.commands[-15:], axis=0).max() < 1e-6
    release.set()
