"""What the processes that hold an arm say to the node in front of them, also while that stands still."""

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from real.franka.arm import Arm
from real.franka.link import ArmState, Link
from real.held.node import HeldNode
from real.held.report import Report
from real.lerobot import holder
from robot_rl.robots.fr3 import FR3

STATE = ArmState(0.0, *[(0.0,) * 7] * 4, (0.0,) * 6, *[0.0] * 8)
SETTINGS = {
    "motors": ["pan", "jaw"], "joints": 1, "rate": 60, "speed": [100.0, 100.0], "lead": [17.0, 100.0], "start": 11.0,
    "goal_timeout": 0.1, "patience": 1.0, "silence": 0.5, "dry_run": False,
}  # fmt: skip


def ends(kind: type[Any]) -> tuple[Any, Any]:
    """Return both ends of a socket: the arm's process's and the node's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return kind(ours), kind(theirs)


def drained(link: Any) -> list[Any]:
    found = []
    while (message := link.receive()) is not None:
        found.append(message)
    return found


def test_a_franka_s_stop_is_told_once_the_node_reads_again() -> None:
    link, node = ends(Link)
    arm = Arm(SimpleNamespace(), FR3, link)  # type: ignore[arg-type]
    while link.send(STATE):
        pass
    arm._latch("user stop")
    assert not any(isinstance(message, Report) for message in drained(node))
    assert not arm._may_follow(FR3.home)
    assert drained(node) == [Report("user stop", True)]
    arm._may_follow(FR3.home)
    assert drained(node) == [], "what has been told is not repeated"


def test_an_arm_of_lerobot_tells_its_stop_once_the_node_reads_again() -> None:
    link, node = ends(holder.Link)
    arm = holder.Holder(None, SETTINGS, link)
    while link.send(time=0.0, position=[0.0] * 6):
        pass
    arm.fault = "blocked"
    arm._may_follow(0.0)
    assert not any("latched" in message for message in drained(node))
    arm._may_follow(0.0)
    assert drained(node) == [{"reason": "blocked", "latched": True}]


@pytest.mark.parametrize("kind", [Link, holder.Link])
def test_last_words_wait_for_a_node_that_stands_still(kind: Any) -> None:
    link, node = ends(kind)
    while link.send(STATE) if kind is Link else link.send(time=0.0):
        pass
    heard: list[Any] = []
    timer = threading.Timer(0.2, lambda: heard.extend(drained(node)))
    timer.start()
    assert link.send(Report("gone", True), 5.0) if kind is Link else link.send(5.0, reason="gone", latched=True)
    link.close()
    timer.join()
    said = (heard + drained(node))[-1]
    assert said in (Report("gone", True), {"reason": "gone", "latched": True}) and node.closed


@pytest.mark.parametrize(("said", "told"), [
    (Report("user stop", True), Report("user stop", True)),
    (Report("", False), Report("no state of the robot for 0.2 s", False)),
])  # fmt: skip
def test_a_latched_stop_is_told_while_states_are_missing(said: Report, told: Report) -> None:
    node: Any = SimpleNamespace(_said=said, report=Report("no state yet", False), state_time=0.0)
    node._change = lambda report, _say: setattr(node, "report", report)
    HeldNode._take(node, {}, 0.0)
    assert node.report == told
