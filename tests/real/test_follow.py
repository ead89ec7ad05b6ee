"""How commands follow goals: jerk-limited motion."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real.control.follow import Goal, JerkLimited
from robot_rl.interface.command import Twist
from robot_rl.interface.driver import ForwardPosition
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots.panda import PANDA
from robot_rl.util.errors import ConfigError
from sim.tasks import tasks

LIFT = tasks.get("panda-lift").interface
JERK = 3000.0
JOINTS = tuple(replace(joint, jerk=JERK) for joint in PANDA.joints)
SMOOTH = replace(PANDA, joints=JOINTS, driver=ForwardPosition(follow="jerk_limited"))
HOME = torch.tensor(PANDA.home)[None]


def goal(position: torch.Tensor) -> Goal:
    return Goal(position, HOME, 0.0, 0.0, 0.05)


@given(st.integers(0, 2**31), st.integers(1, 40))
@settings(deadline=None, max_examples=10)
def test_speed_acceleration_and_jerk_are_limited_and_the_shield_changes_nothing(seed: int, hold: int) -> None:
    pipeline: Any = Pipeline(LIFT, SMOOTH)
    follower, shield, dt = JerkLimited(pipeline), pipeline.shield, pipeline.tick
    rng = torch.Generator().manual_seed(seed)
    at, rate, positions = HOME, torch.zeros_like(HOME), [HOME.double()]
    for _ in range(5):
        target = goal(HOME + 0.5 * (torch.rand(1, 7, generator=rng) - 0.5))
        for _ in range(hold):
            at, rate = shield.follow(at, rate, *follower.follow(target, 0.0, at, rate), dt)
            assert torch.allclose(at[0], torch.tensor(follower._output.new_position), atol=1e-5)
            positions.append(at.double())
    for _ in range(120):
        at, rate = shield.follow(at, rate, *follower.brake(at, rate), dt)
        positions.append(at.double())
    assert rate.abs().max() < 1e-4, "at rest"
    path = torch.cat(positions)
    velocity = path.diff(dim=0) / dt
    acceleration = velocity.diff(dim=0) / dt
    jerk = acceleration.diff(dim=0) / dt
    assert (velocity.abs() <= shield.velocity * 1.01).all()
    assert (acceleration.abs() <= shield.acceleration * 1.05).all()
    assert jerk.abs().max() <= 1.3 * JERK, "differences of positions in single precision"


def test_goal_is_reached() -> None:
    pipeline: Any = Pipeline(LIFT, SMOOTH)
    follower, target = JerkLimited(pipeline), goal(HOME + 0.2)
    at, rate = HOME, torch.zeros_like(HOME)
    for _ in range(300):
        at, rate = pipeline.shield.follow(at, rate, *follower.follow(target, 0.0, at, rate), pipeline.tick)
    assert torch.allclose(at, HOME + 0.2, atol=1e-4)


def test_robots_without_jerk_limits_and_other_commands_are_refused() -> None:
    plain = replace(PANDA, driver=ForwardPosition(follow="jerk_limited"))
    with pytest.raises(ConfigError, match="jerk_limited, but joint1, joint2.* no `jerk` in the spec"):
        JerkLimited(Pipeline(LIFT, plain))
    with pytest.raises(ConfigError, match="which is for joint positions"):
        JerkLimited(Pipeline(LIFT, SMOOTH, accepted=(Twist,)))
