"""The shield of stiff joints (`follow`, `admit`) and of compliant joints, without acceleration limits."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.control import ToolDeltaConfig, ToolDeltaController
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.shield import JointShield, ShieldConfig, ramp
from robot_rl.robots.go2 import GO2
from robot_rl.robots.panda import PANDA

DT = 1 / PANDA.command_rate
SHIELD = JointShield(PANDA)
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
@example(corners(4), 400, False)
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
    shield = JointShield(strong, ShieldConfig())  # only the speed limit is active
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


def test_limits_are_shares_of_the_robots_limits_and_leave_a_range(panda: Any) -> None:
    shield = JointShield(panda, ShieldConfig(velocity=0.25, acceleration=0.1, margin=0.2))
    assert torch.allclose(shield.velocity, 0.25 * panda.limit("velocity"))
    assert torch.allclose(shield.acceleration, 0.1 * panda.limit("acceleration"))
    assert torch.allclose(shield.low, panda.limit("low") + 0.2)
    with pytest.raises(ValueError, match=r"shield\.margin is 1\.505 rad, which leaves joint 'joint4' nothing of its 3"):
        JointShield(panda, ShieldConfig(margin=1.505))


@pytest.mark.parametrize(("changes", "message"), [
    ({"velocity": 100.0}, r"shield\.velocity is 100; it must be "),
    ({"velocity": 0.0}, r"shield\.velocity is 0; it must be "),
    ({"acceleration": math.nan}, r"shield\.acceleration is nan; it must be "),
    ({"margin": -1.0}, r"shield\.margin is -1; it must be "),
    ({"margin": True}, r"shield\.margin is True; it must be "),
    ({"workspace_slack": 5.0}, r"shield\.workspace_slack is 5; it must be "),
])  # fmt: skip
def test_invalid_shield_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShieldConfig(**changes)


def test_ramp_ends_on_the_goal() -> None:
    start, goal = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, -1.0]])
    path, step = ramp(start, goal, 4)
    assert torch.equal(path[-1], goal)
    assert torch.allclose(path[0], start + step) and torch.allclose(step, torch.tensor([[0.25, -0.5]]))


HOME = torch.tensor(PANDA.home)


def outside(q: Tensor) -> Tensor:
    """Return the tool's distance outside the box, summed over axes, m."""
    position = Kinematics(PANDA).forward(q)[0]
    assert SHIELD.stopping
    low, high = SHIELD.stopping.box
    return ((low - position).clamp_min(0) + (position - high).clamp_min(0)).sum(-1)


def posture_at(state_at: Any, target: list[float]) -> Tensor:
    """Return a posture with the tool near a position, which may be outside the workspace."""
    controller = ToolDeltaController(PANDA, ToolDeltaConfig())
    controller.workspace = torch.tensor([[-2.0] * 3, [2.0] * 3])
    q = HOME[None]
    for _ in range(100):
        delta = (torch.tensor(target) - Kinematics(PANDA).forward(q)[0]).clamp(-0.04, 0.04)
        q = controller(state_at(q), torch.cat([delta, torch.zeros(1, 1)], -1)).command.values
    return q


def test_valid_goals_are_unchanged(state_at: Any, panda: Any) -> None:
    goal = HOME[None] + 0.01
    admitted, events = SHIELD.admit(goal, HOME[None])
    assert torch.equal(admitted, goal)
    assert set(events) == {"nonfinite", "position", "workspace", "collision"}
    assert not any(mask.any() for mask in events.values())
    (x, _, low), _ = panda.tool.workspace
    edge = posture_at(state_at, [0.5, 0.0, low - 0.5 * SHIELD.config.workspace_slack])
    assert torch.equal(SHIELD.admit(edge, HOME[None])[0], edge), "within the slack"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("joint", [0, 6])
def test_non_finite_number_rejects_only_its_row(bad: float, joint: int) -> None:
    goal = HOME.repeat(3, 1) + 0.01
    goal[1, joint] = bad
    previous = HOME.repeat(3, 1)
    admitted, events = SHIELD.admit(goal, previous)
    assert torch.equal(admitted[1], previous[1])
    assert torch.equal(admitted[[0, 2]], goal[[0, 2]])
    assert events["nonfinite"].tolist() == [False, True, False]
    assert not events["position"].any() and not events["workspace"].any()


def test_goals_are_clipped_to_joint_limits_with_margin(panda: Any) -> None:
    goal = HOME.repeat(2, 1)
    goal[1, 6] = 10.0
    admitted, events = SHIELD.admit(goal, HOME.repeat(2, 1))
    assert admitted[1, 6] == pytest.approx(panda.joints[6].high - SHIELD.config.margin)
    assert torch.equal(admitted[1, :6], HOME[:6])
    assert events["position"].tolist() == [False, True]


def test_goals_outside_the_workspace_are_rejected_except_towards_it(state_at: Any) -> None:
    inside, out = HOME[None], posture_at(state_at, [0.55, 0.0, -0.06])
    assert outside(out) > 0.02
    admitted, events = SHIELD.admit(out, inside)
    assert torch.equal(admitted, inside)
    assert events["workspace"].all() and not events["nonfinite"].any()
    far, near, inside = (posture_at(state_at, [0.5, 0.0, z]) for z in (-0.10, -0.05, 0.10))
    assert outside(far) > outside(near) > 0 and outside(inside) == 0
    for goal, allowed in ((near, True), (inside, True), (far, False)):
        previous = near if goal is far else far
        admitted, events = SHIELD.admit(goal, previous)
        assert torch.equal(admitted, goal if allowed else previous)
        assert events["workspace"].item() is not allowed


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.lists(st.floats(width=32), min_size=14, max_size=14), st.integers(0, 2**31))
def test_admitted_goals_are_finite_within_limits_and_explained(numbers: list[float], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    goal = torch.tensor(numbers).view(2, 7)
    previous = (HOME + 0.2 * torch.randn(2, 7, generator=rng)).clamp(SHIELD.low, SHIELD.high)
    admitted, events = SHIELD.admit(goal, previous)
    assert admitted.isfinite().all()
    assert ((admitted >= SHIELD.low) & (admitted <= SHIELD.high)).all()
    assert (outside(admitted) <= outside(previous) + 1e-6).all()
    changed = ~(admitted == goal).all(-1)
    assert torch.equal(changed, torch.stack(list(events.values())).any(0)), "every change has a reason"
    assert not (events["workspace"] & events["nonfinite"]).any()


PERIOD = 0.005
COMPLIANT = JointShield(GO2, ShieldConfig(velocity=0.5, acceleration=1e-6, margin=0.02))
GO2_HOME = torch.tensor(GO2.home)
REST = torch.zeros(1, 12)


def follow_setpoint(position: Tensor, goal: Tensor, velocity: Tensor | None = None) -> tuple[Tensor, Tensor]:
    speed = torch.zeros_like(goal) if velocity is None else velocity
    return COMPLIANT.follow(position, speed, goal, torch.zeros_like(goal), PERIOD)


def test_near_setpoint_is_reached_in_one_tick_and_a_far_one_at_the_speed_limit() -> None:
    """Joints are limited independently."""
    reach = 0.5 * GO2.limit("velocity") * PERIOD
    goal = GO2_HOME[None] + 0.99 * reach * torch.tensor([1.0, -1.0] * 6)
    command, velocity = follow_setpoint(GO2_HOME[None], goal)
    assert torch.allclose(command, goal, atol=1e-7), "no acceleration limit"
    assert torch.allclose(velocity, (goal - GO2_HOME) / PERIOD, atol=1e-3)
    goal = GO2_HOME[None].clone()
    goal[0, 0], goal[0, 1] = 0.5, GO2_HOME[1] + 0.01
    command, velocity = follow_setpoint(GO2_HOME[None], goal)
    assert float(command[0, 0] - GO2_HOME[0]) == pytest.approx(float(reach[0]), abs=1e-6)
    assert float(velocity[0, 0]) == pytest.approx(0.5 * 30.1, rel=1e-4)
    assert float(command[0, 1]) == pytest.approx(float(goal[0, 1]))
    back, speed = follow_setpoint(command, GO2_HOME[None], velocity)
    assert torch.allclose(back, GO2_HOME[None], atol=1e-6), "may reverse in one tick"
    assert float(speed[0, 0]) == pytest.approx(-0.5 * 30.1, rel=1e-4)


def test_goals_and_commands_are_clipped_at_the_margin_without_a_workspace() -> None:
    goal = GO2_HOME.repeat(3, 1)
    goal[1, 2], goal[2, 11] = 0.0, -9.0
    admitted, events = COMPLIANT.admit(goal, GO2_HOME.repeat(3, 1))
    assert set(events) == {"nonfinite", "position"}
    assert events["position"].tolist() == [False, True, True] and not events["nonfinite"].any()
    assert torch.equal(admitted[0], GO2_HOME)
    assert float(admitted[1, 2]) == pytest.approx(GO2.joints[2].high - 0.02)
    assert float(admitted[2, 11]) == pytest.approx(GO2.joints[11].low + 0.02)
    measured = GO2.limit("high")[None] + 0.01  # commands start at the measured posture
    command, _ = follow_setpoint(measured, GO2_HOME[None])
    assert ((command >= COMPLIANT.low) & (command <= COMPLIANT.high)).all()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.lists(st.floats(width=32), min_size=12, max_size=12), min_size=1, max_size=4))
def test_commands_stay_within_speed_and_position_limits(goals: list[list[float]]) -> None:
    previous = command = GO2_HOME[None]
    velocity = REST
    for numbers in goals:
        previous, _ = COMPLIANT.admit(torch.tensor([numbers]), previous)
        for _ in range(3):
            before = command
            command, velocity = follow_setpoint(command, previous, velocity)
            assert command.isfinite().all() and ((command >= COMPLIANT.low) & (command <= COMPLIANT.high)).all()
            assert ((command - before).abs() <= COMPLIANT.velocity * PERIOD + 1e-6).all()
            assert torch.allclose(velocity, (command - before) / PERIOD)
