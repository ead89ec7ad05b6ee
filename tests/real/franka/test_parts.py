"""Arm, hand and node of a Franka without a robot: dry run, failed motions of the hand, preflight."""

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pylibfranka as fci
import pytest

from real.franka import arm, hand
from real.franka.link import ArmState, Grip, HandState, Link, Recover
from real.franka.node import FrankaNode
from robot_rl.robots.fr3 import FR3
from robot_rl.util.errors import UserError

AT_REST = ArmState(1.0, FR3.home, *[(0.0,) * 7] * 3, (0.0,) * 6, 1.0, 0.0, 0.0, 0.0, 0.0, 1000.0, 0.0, 0.73)
HOMED = HandState(0.04, 0.0795, 0.0, 0.0, 1.0)


def ends() -> tuple[Link, Link]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours), Link(theirs)


@pytest.mark.parametrize("dry_run", [True, False])
def test_dry_run_changes_no_setting_and_recovers_nothing(dry_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = Mock()
    monkeypatch.setattr(arm.fci, "Robot", lambda *_: robot)
    link, node = ends()
    settings = {"robot": "fr3", "host": "h", "realtime": False, "limits": {}, "dry_run": dry_run}
    held = arm.connect(settings, link)
    assert not dry_run or not robot.mock_calls
    held.fault = "reflex"
    node.send(Recover(1))
    zeros = {"q": FR3.home, "dq": [0.0] * 7, "robot_mode": fci.RobotMode.Reflex}
    held._take(SimpleNamespace(**zeros))
    assert not held.fault and [call[0] for call in robot.mock_calls] == (
        [] if dry_run else ["set_collision_behavior", "automatic_error_recovery"]
    )


class Gripper:
    """Hand whose motions return or raise what is next in `answers`, and True after that."""

    def __init__(self, *answers: Any):
        self.answers, self.moves = list(answers), []

    def read_once(self) -> Any:
        return SimpleNamespace(width=0.02, max_width=0.078, is_grasped=False)

    def move(self, width: float, speed: float) -> bool:
        self.moves.append(round(width, 4))
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    def grasp(self, width: float, speed: float, force: float, inner: float, outer: float) -> bool:
        self.move(width, speed)
        return False  # nothing was there


@pytest.mark.parametrize("answer", [False, fci.CommandException("libfranka gripper: Command failed!")])
def test_a_failed_motion_of_the_hand_is_told_and_tried_again(
    answer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(hand.time, "monotonic", lambda: now[0])
    link, node = ends()
    gripper = Gripper(answer)
    held = hand.Hand(gripper, 0.1, link)  # type: ignore[arg-type]
    node.send(Grip(0.08, 20.0))
    for _ in range(30):
        now[0] += 0.1
        held.cycle()
    assert gripper.moves == [0.078, 0.078], "clamped to what the hand has, once a second, until it is done"
    states = list(iter(node.receive, None))
    assert (states[0].max_width, states[-1].failed) == (0.078, 1) and "the hand has not come to a width" in caplog.text


def test_a_grasp_that_holds_nothing_is_done() -> None:
    link, node = ends()
    gripper = Gripper()
    held = hand.Hand(gripper, 0.1, link)  # type: ignore[arg-type]
    node.send(Grip(0.0, 20.0))
    for _ in range(5):
        held.cycle()
    assert gripper.moves == [0.0] and held.failed == 0


def preflight(arm_state: ArmState = AT_REST, hand_state: HandState = HOMED) -> str:
    node: Any = SimpleNamespace(
        robot=FR3, config=FR3.driver, where="10.0.0.2", arm_state=arm_state, hand_state=hand_state,
        states=SimpleNamespace(topic="/joint_states"),
    )  # fmt: skip
    for name in ("_check_hand", "_check_load"):
        setattr(node, name, getattr(FrankaNode, name).__get__(node))
    return FrankaNode.preflight(node)


def test_an_arm_that_is_fit_is_described() -> None:
    assert "0.00 rad from home, 0.73 kg on the flange, 1000 states a second" in preflight()


@pytest.mark.parametrize("changed", [
    {"wrench": (0.0, 0.0, -21.0, 0.0, 0.0, 0.0)}, {"tau_external": (0.0, -13.0, 0.0, 0.0, 0.0, 0.0, 0.0)},
])  # fmt: skip
def test_an_arm_with_a_load_that_it_does_not_know_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"set end effector and load in Desk \(0.73 kg are set\)"):
        preflight(replace(AT_REST, **changed))


@pytest.mark.parametrize("widest", [0.0, 0.074])
def test_a_hand_that_is_not_homed_is_refused(widest: float) -> None:
    with pytest.raises(UserError, match=r"not homed.*Gripper\('10.0.0.2'\).homing\(\)"):
        preflight(hand_state=replace(HOMED, max_width=widest))


def test_cycles_in_which_the_process_stood_still_before_a_reflex_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(arm.time, "monotonic", lambda: now[0])
    held = arm.Arm(Mock(), FR3, ends()[0])
    now[0] += 0.0015
    held._count_silence()
    assert (held._lost, held._in_row, held._stalls) == (0, 0, 0), "the robot ended the motion for another reason"
    now[0] += 0.03
    held._count_silence()
    assert (held._lost, held._in_row, held._stalls) == (30, 30, 1)
