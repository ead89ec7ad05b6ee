"""Shield of compliant joints: setpoints move within the speed and position limits, without acceleration limits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.shield import Shield, ShieldConfig
from robot_rl.robots.go2 import GO2

DT = 0.005
SHIELD = Shield(GO2, ShieldConfig(velocity=0.5, acceleration=1e-6, margin=0.02))
HOME = torch.tensor(GO2.home)
REST = torch.zeros(1, 12)


def follow(position: Tensor, goal: Tensor, velocity: Tensor | None = None) -> tuple[Tensor, Tensor]:
    speed = torch.zeros_like(goal) if velocity is None else velocity
    return SHIELD.follow(position, speed, goal, torch.zeros_like(goal), DT)


def test_near_setpoint_is_reached_in_one_tick() -> None:
    reach = 0.5 * GO2.limit("velocity") * DT
    goal = HOME[None] + 0.99 * reach * torch.tensor([1.0, -1.0] * 6)
    command, velocity = follow(HOME[None], goal)
    assert torch.allclose(command, goal, atol=1e-7), "no acceleration limit"
    assert torch.allclose(velocity, (goal - HOME) / DT, atol=1e-3)


def test_far_setpoint_is_approached_at_the_speed_limit() -> None:
    """Joints are limited independently."""
    reach = 0.5 * GO2.limit("velocity") * DT
    goal = HOME[None].clone()
    goal[0, 0], goal[0, 1] = 0.5, HOME[1] + 0.01
    command, velocity = follow(HOME[None], goal)
    assert float(command[0, 0] - HOME[0]) == pytest.approx(float(reach[0]), abs=1e-6)
    assert float(velocity[0, 0]) == pytest.approx(0.5 * 30.1, rel=1e-4)
    assert float(command[0, 1]) == pytest.approx(float(goal[0, 1]))
    back, speed = follow(command, HOME[None], velocity)
    assert torch.allclose(back, HOME[None], atol=1e-6), "may reverse in one tick"
    assert float(speed[0, 0]) == pytest.approx(-0.5 * 30.1, rel=1e-4)


def test_admit_clips_at_the_margin_without_a_workspace() -> None:
    goal = HOME.repeat(3, 1)
    goal[1, 2], goal[2, 11] = 0.0, -9.0
    admitted, events = SHIELD.admit(goal, HOME.repeat(3, 1))
    assert set(events) == {"nonfinite", "position"}
    assert events["position"].tolist() == [False, True, True] and not events["nonfinite"].any()
    assert torch.equal(admitted[0], HOME)
    assert float(admitted[1, 2]) == pytest.approx(GO2.joints[2].high - 0.02)
    assert float(admitted[2, 11]) == pytest.approx(GO2.joints[11].low + 0.02)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.lists(st.floats(width=32), min_size=12, max_size=12), min_size=1, max_size=4))
def test_commands_stay_within_speed_and_position_limits(goals: list[list[float]]) -> None:
    previous = command = HOME[None]
    velocity = REST
    for numbers in goals:
        previous, _ = SHIELD.admit(torch.tensor([numbers]), previous)
        for _ in range(3):
            before = command
            command, velocity = follow(command, previous, velocity)
            assert command.isfinite().all() and ((command >= SHIELD.low) & (command <= SHIELD.high)).all()
            assert ((command - before).abs() <= SHIELD.velocity * DT + 1e-6).all()
            assert torch.allclose(velocity, (command - before) / DT)


def test_start_outside_the_limits_moves_inside() -> None:
    """Commands start at the measured posture, which may be at a joint limit."""
    start = GO2.limit("high")[None] + 0.01
    command, _ = follow(start, HOME[None])
    assert ((command >= SHIELD.low) & (command <= SHIELD.high)).all()
