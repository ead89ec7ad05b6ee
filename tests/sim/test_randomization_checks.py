"""Randomization without an effect, or with clipped values, raises when the environment is created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.randomization import Randomize

SPEED, INTERVAL = Randomize("push.speed", 0.0, 0.5, "m/s"), Randomize("push.interval", 5.0, 10.0, "s")


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        ([Randomize("robot.action_delay", 0.0, 0.3, "s")], r"robot.action_delay may come to 0.3 s.*0.08 s at most"),
        ([Randomize("robot.action_delay", 0.0, 0.075, "s", "normal")], r"robot.action_delay may come to 0.095"),
        ([Randomize("sensor.state_delay", 0.0, 0.03, "s")], r"sensor.state_delay may come to 0.03 s.* 0.02 s at most"),
        ([SPEED], "push.interval is not, so nothing would push"),
        ([SPEED, Randomize("push.interval", -1.0, 5.0, "s")], r"push.interval may come to -1 s.*\(0.02 s\)"),
        ([SPEED, Randomize("push.interval", 0.0, 5.0, "s")], r"push.interval may come to 0 s"),
        ([SPEED, INTERVAL, SPEED], "push.speed is randomized 2 times"),
    ],
)
def test_randomization_without_effect_raises(walk: Callable[..., Any], drawn: list[Randomize], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskEnv(walk(drawn), 1, mjcf="nowhere.xml")  # raises before the model file is read


def test_without_push_interval_but_with_push_speed_raises(walk: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="go without both"):
        TaskEnv(walk(), 1, without=["push.interval"], mjcf="nowhere.xml")
    TaskEnv(walk([SPEED, INTERVAL]), 1, threads=1, without=["push.speed", "push.interval"]).close()


def test_longest_delays_are_allowed(walk: Callable[..., Any]) -> None:
    longest = [Randomize("robot.action_delay", 0.0, 0.08, "s"), Randomize("sensor.state_delay", 0.0, 0.02, "s")]
    env = TaskEnv(walk(longest), 2, threads=1)
    env.reset(seed=0)
    assert (env.sampled[:, 0] <= 0.08).all()
