"""`Shield.follow` of stiff joints: commands stay within speed, acceleration and position limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.shield import Shield, ShieldConfig, ramp
from robot_rl.robots.panda import PANDA

DT = 1 / PANDA.command_rate
SHIELD = Shield(PANDA)
TOLERANCE = 1e-5  # float32 rounding, relative


def run(goals: Tensor, hold: int, feed: bool, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Follow each goal (k, n, J) for `hold` ticks as the control loop; return positions and velocities (T, n, J)."""
    position = start if start is not None else goals[0]
    previous, velocity = position, torch.zeros_like(position)
    positions, velocities = [position], [velocity]
    for goal in goals:
        path, step = ramp(previous, goal, hold)
        for k in range(hold):
            aim, speed = (path[k], step / DT) if feed else (goal, torch.zeros_like(goal))
            position, velocity = SHIELD.follow(position, velocity, aim, speed, DT)
            positions.append(position)
            velocities.append(velocity)
        previous = goal
    return torch.stack(positions), torch.stack(velocities)


def corners(count: int, rows: int = 32) -> Tensor:
    """Return goals in corners of the joint space, where joints brake at limits while others accelerate."""
    fraction = torch.rand(count, rows, 7, generator=torch.Generator().manual_seed(0)).round()
    return SHIELD.low + fraction * (SHIELD.high - SHIELD.low)


@st.composite
def goal_sequences(draw: st.DrawFn) -> Tensor:
    """Goals between the limits: small steps, jumps, or corners of the joint space."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kind = draw(st.sampled_from(["steps", "jumps", "corners", "single joint"]))
    count, rows = draw(st.integers(2, 10)), 8
    fraction = torch.rand(count, rows, 7, generator=rng)
    if kind == "steps":
        fraction = 0.5 + 0.05 * (fraction - 0.5).cumsum(0)
    elif kind == "corners":
        fraction = fraction.round()
    elif kind == "single joint":
        fraction[..., 1:] = fraction[:1, :, 1:]
    return SHIELD.low + fraction * (SHIELD.high - SHIELD.low)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(goal_sequences(), st.sampled_from([1, 3, 10, 40]), st.booleans())
def test_speed_and_acceleration_limits_hold(goals: Tensor, hold: int, feed: bool) -> None:
    positions, velocities = run(goals, hold, feed)
    assert (velocities.abs() <= SHIELD.velocity * (1 + TOLERANCE)).all()
    assert (velocities.diff(dim=0).abs() <= SHIELD.acceleration * DT * (1 + 1e-3)).all()
    # Differences of the commanded positions obey the speed limit.
    assert (positions.diff(dim=0).abs() <= SHIELD.velocity * DT + 1e-6).all()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(goal_sequences(), st.sampled_from([1, 3, 10, 40]), st.booleans())
@example(corners(12), 40, False)
def test_position_limits_hold(goals: Tensor, hold: int, feed: bool) -> None:
    positions, _ = run(goals, hold, feed)
    over = torch.maximum(SHIELD.low - positions, positions - SHIELD.high).max()
    # Braking is exact for whole speed steps; a fractional step adds at most an eighth of a step, 5e-5 rad.
    assert over <= (SHIELD.acceleration * DT * DT).max() / 8 + 1e-6, f"leaves the position limits by {over:.2e} rad"


@settings(deadline=None, derandomize=True, max_examples=10)
@given(goal_sequences(), st.booleans())
def test_fixed_goal_is_reached_exactly(goals: Tensor, feed: bool) -> None:
    positions, velocities = run(goals, 10, feed)
    position, velocity, goal = positions[-1], velocities[-1], goals[-1]
    rest = torch.zeros_like(goal)
    for _ in range(1600):
        position, velocity = SHIELD.follow(position, velocity, goal, rest, DT)
        if torch.equal(position, goal) and not velocity.any():
            break
    for _ in range(20):
        assert torch.equal(position, goal)
        position, velocity = SHIELD.follow(position, velocity, goal, rest, DT)


def test_goal_within_the_limits_is_followed_without_lag(panda: Any) -> None:
    home = torch.tensor(panda.home)[None]
    path, step = ramp(home, home + 0.001, 10)  # 0.02 rad/s: below the speed change of one tick
    position, velocity = home, torch.zeros_like(home)
    for k in range(10):
        position, velocity = SHIELD.follow(position, velocity, path[k], step / DT, DT)
        assert torch.allclose(position, path[k], atol=1e-6)


def test_path_from_rest_is_straight(panda: Any) -> None:
    home = torch.tensor(panda.home)[None]
    direction = torch.tensor([[1.0, -0.5, 0.8, 0.3, -0.2, 0.6, 0.9]])
    goal = home + 0.5 * direction
    position, velocity = home, torch.zeros_like(home)
    moved = []
    for _ in range(12):
        position, velocity = SHIELD.follow(position, velocity, goal, torch.zeros_like(goal), DT)
        moved.append(position - home)
    # While all joints accelerate, velocity changes are parallel to the desired change.
    change = torch.cat(moved).diff(dim=0)
    first = change[0] / change[0].norm()
    assert (change[:4] / change[:4].norm(dim=-1, keepdim=True) - first).abs().max() < 1e-2
    used = velocity.abs() / SHIELD.velocity
    assert used.max() <= 1 + TOLERANCE and (used < 0.999).any(), "one joint limits the pace"


def test_excessive_speed_scales_the_whole_row(panda: Any) -> None:
    strong = replace(panda, joints=tuple(replace(j, acceleration=1e7) for j in panda.joints))
    shield = Shield(strong, ShieldConfig())  # only the speed limit is active
    home = torch.tensor(panda.home)[None]
    speed = 3 * shield.velocity * torch.tensor([[1.0, 0.1, -0.2, 0.3, -0.4, 0.5, 0.6]])
    _, velocity = shield.follow(home, torch.zeros_like(home), home + DT * speed, speed, DT)
    assert torch.allclose(velocity, speed / 3, rtol=1e-3)


def test_rows_are_independent(panda: Any) -> None:
    home = torch.tensor(panda.home)
    goals = torch.stack([home, home + 1.0, home + 0.01])
    start, rest = home.expand(3, 7), torch.zeros(3, 7)
    together = SHIELD.follow(start, rest, goals, rest, DT)[0]
    alone = [SHIELD.follow(start[k : k + 1], rest[:1], goals[k : k + 1], rest[:1], DT)[0] for k in range(3)]
    assert torch.equal(together, torch.cat(alone))


def test_limits_are_shares_of_the_robots_limits(panda: Any) -> None:
    shield = Shield(panda, ShieldConfig(velocity=0.25, acceleration=0.1, margin=0.2))
    assert torch.allclose(shield.velocity, 0.25 * panda.limit("velocity"))
    assert torch.allclose(shield.acceleration, 0.1 * panda.limit("acceleration"))
    assert torch.allclose(shield.low, panda.limit("low") + 0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"velocity": 100.0}, r"shield\.velocity is 100; it must be "),
        ({"velocity": 0.0}, r"shield\.velocity is 0; it must be "),
        ({"acceleration": math.nan}, r"shield\.acceleration is nan; it must be "),
        ({"margin": -1.0}, r"shield\.margin is -1; it must be "),
        ({"margin": True}, r"shield\.margin is True; it must be "),
        ({"workspace_slack": 5.0}, r"shield\.workspace_slack is 5; it must be "),
    ],
)
def test_invalid_shield_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShieldConfig(**changes)


def test_margin_larger_than_a_joints_range_is_refused(panda: Any) -> None:
    with pytest.raises(ValueError, match=r"shield\.margin is 1\.505 rad, which leaves joint 'joint4' nothing of its 3"):
        Shield(panda, ShieldConfig(margin=1.505))


def test_ramp_ends_on_the_goal() -> None:
    start, goal = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, -1.0]])
    path, step = ramp(start, goal, 4)
    assert torch.equal(path[-1], goal)
    assert torch.allclose(path[0], start + step) and torch.allclose(step, torch.tensor([[0.25, -0.5]]))
