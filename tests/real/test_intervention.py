"""Transitions between policy and person, and the executed action in each phase."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real import clock as real_clock
from real.episode.intervention import Arbiter, Phase
from real.teleop.commands import RELEASED, TIMEOUT, Operator, OperatorInput
from robot_rl.interface.control import JointOffsetConfig, JointOffsetController, ToolDeltaConfig, ToolDeltaController
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots import robots
from sim.tasks import tasks

A, C, H, P, S = Phase.AUTONOMOUS, Phase.CORRECTING, Phase.HANDING_BACK, Phase.PAUSED, Phase.STOPPED
HELD = Operator(held=True, motion=(0.5, -0.25, 1.0), gripper=-1.0)
STOP = Operator(stop=True)
LOST = Operator(lost=True)
POLICY = torch.tensor([[0.1, 0.2, 0.3, 0.9]])
STILL = torch.tensor([[0.0, 0.0, 0.0, -0.7]])  # no motion; the gripper's last command
TOOL = Pipeline(tasks.get("panda-lift").interface).controller
Hands = Callable[..., Any]


@pytest.mark.parametrize(
    ("before", "reading", "after"),
    [
        (A, None, A), (A, RELEASED, A), (A, HELD, C), (A, LOST, A), (A, STOP, S),
        (C, None, H), (C, RELEASED, H), (C, HELD, C), (C, LOST, P), (C, STOP, S),
        (H, None, A), (H, RELEASED, A), (H, HELD, C), (H, LOST, A), (H, STOP, S),
        (P, None, H), (P, RELEASED, H), (P, HELD, C), (P, LOST, P), (P, STOP, S),
        (S, None, S), (S, RELEASED, S), (S, HELD, S), (S, LOST, S), (S, STOP, S),
    ],
)  # fmt: skip
def test_transition(before: Phase, reading: Operator | None, after: Phase) -> None:
    arbiter = Arbiter(_fixed(reading), TOOL)
    arbiter.phase = before
    decision = arbiter.decide(POLICY, STILL)
    assert decision.phase is arbiter.phase is after
    assert decision.takeover == (after is C and before is not C)
    if after is C:
        assert torch.equal(decision.action, torch.tensor([[0.5, -0.25, 1.0, -1.0]]))
    elif after in (H, P):
        assert torch.equal(decision.action, STILL)
    else:
        assert decision.action is POLICY


def _fixed(reading: Operator | None) -> Any:
    return SimpleNamespace(read=lambda now=None: reading)


def test_without_a_device_the_policy_acts() -> None:
    decision = Arbiter(None, TOOL).decide(POLICY, STILL)
    assert decision.action is POLICY and decision.phase is A and decision.operator is None


def test_persons_action_is_clipped_and_gripper_0_keeps_the_gripper(hands: Hands) -> None:
    arbiter = Arbiter(hands(*[Operator(held=True, gripper=g) for g in (0.0, 1.0, -0.0)]), TOOL)
    widths = [float(arbiter.decide(POLICY, STILL).action[0, -1]) for _ in range(3)]
    assert widths == [pytest.approx(-0.7), 1.0, pytest.approx(-0.7)]
    arbiter = Arbiter(hands(Operator(held=True, motion=(3.0, -3.0, 0.0), gripper=5.0)), TOOL)
    assert arbiter.decide(POLICY, STILL).action.tolist() == [[1.0, -1.0, 0.0, 1.0]]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.sampled_from([None, RELEASED, HELD, LOST, STOP]), max_size=30))
def test_person_acts_exactly_while_the_enable_button_is_held(script: list[Operator | None]) -> None:
    arbiter = Arbiter(None, TOOL)
    stopped = corrected = paused = False
    grown, full = 8, 8
    """Periods of the policy since a hand-back, of those until its motion has its full size."""
    for reading in script:
        arbiter.operator = _fixed(reading)
        decision = arbiter.decide(POLICY, STILL)
        stopped |= reading is STOP
        held = reading is HELD and not stopped
        was, paused = paused, (corrected or paused) and reading is LOST and not stopped
        back = (corrected or was) and not held and not paused and not stopped
        acts = not (held or back or paused)
        grown = min(full, grown + 1) if acts else 0
        assert (decision.phase is C) == held
        if not stopped:  # then the loop stops the robot, whatever the action
            assert (decision.action is POLICY) == (acts and grown == full)
        if acts and not stopped:
            assert torch.allclose(decision.action, POLICY * torch.tensor([*[grown / full] * 3, 1.0]))
        assert decision.takeover == (held and not corrected)
        assert (decision.phase is H) == back and (decision.phase is P) == paused
        corrected = held


def test_silence_during_a_correction_holds_until_the_device_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy's motion, which the person corrected, must not resume."""
    clock = SimpleNamespace(now=50.0)
    monkeypatch.setattr(real_clock, "now", lambda: clock.now)
    node = SimpleNamespace(subscribe=lambda *_, **__: None)
    operator = OperatorInput(node, "panda")  # type: ignore[arg-type]
    arbiter = Arbiter(operator, TOOL)
    operator.receive(HELD, clock.now)
    assert arbiter.decide(POLICY, STILL).phase is C
    clock.now += 0.9 * TIMEOUT
    assert arbiter.decide(POLICY, STILL).phase is C
    clock.now += 0.2 * TIMEOUT
    for _ in range(50):
        decision = arbiter.decide(POLICY, STILL)
        assert decision.phase is P and torch.equal(decision.action, STILL)
        clock.now += 10.0
    operator.receive(HELD, clock.now)
    assert arbiter.decide(POLICY, STILL).takeover
    clock.now += 10.0
    assert arbiter.decide(POLICY, STILL).phase is P
    operator.receive(RELEASED, clock.now)
    assert [arbiter.decide(POLICY, STILL).phase for _ in range(2)] == [H, A]
    clock.now += 10.0
    assert arbiter.decide(POLICY, STILL).phase is A, "the button was released before the silence"


def _tool(robot: str, turn: float) -> Any:
    return ToolDeltaController(robots.get(robot), ToolDeltaConfig(turn=turn))


@pytest.mark.parametrize(
    ("robot", "turn", "taken"),
    [
        ("ur5e", 0.0, [0.5, -0.25, 1.0]),
        ("panda", 0.0, [0.5, -0.25, 1.0, -1.0]),
        ("ur5e", 0.1, [0.5, -0.25, 1.0, 0.1, -0.2, 0.3]),
        ("panda", 0.1, [0.5, -0.25, 1.0, 0.1, -0.2, 0.3, -1.0]),
    ],
)
def test_takeover_sets_all_dimensions_and_hold_moves_nothing(robot: str, turn: float, taken: list[float]) -> None:
    controller = _tool(robot, turn)
    policy = torch.full((1, len(taken)), 0.5)
    hold = controller.hold_action(policy, torch.full((1, 1), controller.width))
    assert hold.shape == policy.shape and not hold[:, : controller.moves].any()
    assert (hold[:, controller.moves :] == 1).all(), "the gripper stays open"
    arbiter = Arbiter(_fixed(replace(HELD, rotation=(0.1, -0.2, 0.3))), controller)
    assert arbiter.decide(policy, hold).action[0].tolist() == pytest.approx(taken)
    arbiter.operator = _fixed(RELEASED)
    assert torch.equal(arbiter.decide(policy, hold).action, hold)


def test_robot_without_a_tool_can_be_stopped_but_not_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    go2 = JointOffsetController(robots.get("go2"), JointOffsetConfig())
    arbiter = Arbiter(_fixed(HELD), go2)
    assert caplog.records
    policy = torch.full((1, 12), 0.3)
    assert arbiter.decide(policy, go2.hold_action(policy, torch.zeros(1, 1))).action is policy
    arbiter.operator = _fixed(STOP)
    assert arbiter.decide(policy, policy).phase is S
