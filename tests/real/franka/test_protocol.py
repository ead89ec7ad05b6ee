"""`robot-rl robot fr3` before franka-sim, which enforces the limits of motion and communication of a real FR3."""

import os
import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

from real.bus import make
from real.topics import INT
from tests.real.franka.conftest import ARRAY, Bench

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(120)]
Hold = Callable[..., Bench]
SWING = np.array([0.2, 0.1, -0.2, 0.15, 0.2, 0.15, 0.3])


def swing(start: list[float]) -> Callable[[float], list[float]]:
    return lambda t: (np.array(start) + SWING * (1 - np.cos(1.2 * t))).tolist()


def test_goals_are_followed_within_the_limits_and_held_when_they_stop(hold: Hold) -> None:
    bench = hold()
    message = bench.states.latest.msg
    assert list(message.name) == [*(f"joint{k}" for k in range(1, 8)), "finger_joint1", "finger_joint2"]
    start = bench.q
    bench.stream(swing(start), 4.0)
    bench.arrive()
    assert np.abs(np.array(bench.q) - start).max() > 0.2
    bench.until(lambda: bench.reports[-1].damping == "no goals")
    assert [r.damping for r in bench.reports if r.latched] == []
    rest = bench.q
    time.sleep(1.0)  # the motion has ended; the robot's own controller holds
    assert np.abs(np.array(bench.q) - rest).max() < 0.01
    bench.stream(swing(bench.q), 1.0)
    assert bench.reports[-1].damping == "", "goals are followed again"


def test_wrong_goals_do_not_move_the_arm(hold: Hold) -> None:
    bench = hold()
    start = bench.q
    for goal in ((np.array(start) + 0.5).tolist(), [float("nan")] * 7, start[:6]):
        bench.stream(lambda _, goal=goal: goal, 0.5)
        assert np.abs(np.array(bench.q) - start).max() < 0.005
    assert "the first goal is more than 0.2 rad away from the arm" in [report.damping for report in bench.reports]
    bench.stream(lambda _: start, 0.2)
    bench.until(lambda: bench.reports[-1].damping == "no goals")
    bench.stream(lambda _: (np.array(start) + 0.5).tolist(), 0.5)  # while the last motion still holds the arm
    assert np.abs(np.array(bench.q) - start).max() < 0.01


def test_a_reflex_latches_until_the_operator_recovers(hold: Hold) -> None:
    """The process of the arm stands still for 0.3 s in motion: the robot stops it by reflex."""
    bench = hold()
    start = bench.q
    bench.stream(swing(start), 0.5)
    arm = bench.pid("real.franka.arm")
    os.kill(arm, signal.SIGSTOP)
    time.sleep(0.3)
    os.kill(arm, signal.SIGCONT)
    bench.until(lambda: bench.reports[-1].latched)
    assert "communication_constraints_violation" in bench.reports[-1].damping
    stopped = bench.q
    bench.stream(lambda _: stopped, 0.5)
    assert bench.reports[-1].latched, "goals do not recover it"
    bench.recover.publish(make(INT, data=1))
    bench.until(lambda: not bench.reports[-1].latched)
    bench.stream(swing(bench.q), 1.0)
    assert bench.reports[-1].damping == "" and np.abs(np.array(bench.q) - stopped).max() > 0.05


def test_killed_processes_leave_the_arm_at_rest(hold: Hold) -> None:
    bench = hold()
    bench.stream(swing(bench.q), 0.5)
    arm = bench.pid("real.franka.arm")
    bench.process.kill()
    bench.process.wait()
    end = time.monotonic() + 5
    while os.path.exists(f"/proc/{arm}"):
        assert time.monotonic() < end, "the arm's process ends with the node"
        time.sleep(0.02)
    again = hold()  # the robot is free and without errors
    start = again.q
    os.kill(again.pid("real.franka.arm"), signal.SIGKILL)
    printed = again.process.communicate(timeout=20)[0]
    assert again.process.returncode == 1 and "the process of the arm has ended" in printed
    assert np.abs(np.array(hold().q) - start).max() < 0.01


def test_the_hand_grasps_and_opens(hold: Hold) -> None:
    bench = hold()
    for width, reached in ((0.08, 0.08), (0.0, 0.04), (0.08, 0.08)):  # an object of 4 cm lies between the fingers
        end = time.monotonic() + 10
        while abs(bench.width - reached) > 0.003:
            assert time.monotonic() < end, (width, bench.width)
            bench.widths.publish(make(ARRAY, data=[width]))
            time.sleep(0.02)


def test_dry_run_sends_nothing(hold: Hold) -> None:
    bench = hold("--dry-run")
    start = bench.q
    bench.stream(swing(start), 1.0)
    assert bench.reports[-1].damping == "" and np.abs(np.array(bench.q) - start).max() < 0.005
