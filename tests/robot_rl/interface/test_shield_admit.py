"""`Shield.admit`: accepted, clipped and rejected goals, with reasons."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.interface.control import ToolDeltaConfig, ToolDeltaController
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.shield import Shield
from robot_rl.robots.panda import PANDA

SHIELD = Shield(PANDA)
HOME = torch.tensor(PANDA.home)


def outside(q: Tensor) -> Tensor:
    """Return the tool's distance outside the box, summed over axes, m."""
    position = Kinematics(PANDA).forward(q)[0]
    return ((SHIELD.box[0] - position).clamp_min(0) + (position - SHIELD.box[1]).clamp_min(0)).sum(-1)


def posture_at(state_at: Any, target: list[float]) -> Tensor:
    """Return a posture with the tool near a position, which may be outside the workspace."""
    controller = ToolDeltaController(PANDA, ToolDeltaConfig())
    controller.workspace = torch.tensor([[-2.0] * 3, [2.0] * 3])
    q = HOME[None]
    for _ in range(100):
        delta = (torch.tensor(target) - Kinematics(PANDA).forward(q)[0]).clamp(-0.04, 0.04)
        q = controller(state_at(q), torch.cat([delta, torch.zeros(1, 1)], -1)).position
    return q


def test_valid_goal_is_unchanged() -> None:
    goal = HOME[None] + 0.01
    admitted, events = SHIELD.admit(goal, HOME[None])
    assert torch.equal(admitted, goal)
    assert set(events) == {"nonfinite", "position", "workspace"} and not any(mask.any() for mask in events.values())


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


def test_goal_outside_the_workspace_is_rejected(state_at: Any) -> None:
    inside, out = HOME[None], posture_at(state_at, [0.55, 0.0, -0.06])
    assert outside(out) > 0.02
    admitted, events = SHIELD.admit(out, inside)
    assert torch.equal(admitted, inside)
    assert events["workspace"].all() and not events["nonfinite"].any()


def test_goal_within_the_slack_is_accepted(state_at: Any, panda: Any) -> None:
    (x, _, low), _ = panda.tool.workspace
    edge = posture_at(state_at, [0.5, 0.0, low - 0.5 * SHIELD.config.workspace_slack])
    assert torch.equal(SHIELD.admit(edge, HOME[None])[0], edge)


def test_outside_the_workspace_only_goals_towards_it_are_accepted(state_at: Any) -> None:
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
