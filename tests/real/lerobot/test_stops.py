"""Servos, cables and processes that fail, and what the arm then does."""

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from real.bus import make
from real.topics import INT
from tests.real.lerobot.conftest import Bench
from tests.real.lerobot.servos import Servos
from tests.real.lerobot.test_follow import SWING, goals

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(120)]
Hold = Callable[..., Bench]


def swing(bench: Bench, seconds: float = 0.5) -> None:
    start = np.array(bench.q)
    bench.stream(lambda t: (start + SWING * t).tolist(), seconds, 60)


def test_replies_with_a_wrong_checksum_are_dropped(hold: Hold, servos: Servos) -> None:
    bench = hold()
    servos.corrupt = 3
    swing(bench)
    bench.until(lambda: not servos.corrupt)
    bench.arrive()
    assert not any(report.latched for report in bench.reports) and bench.process.poll() is None
    bench.process.terminate()
    printed = bench.process.communicate(timeout=20)[0]
    assert "0 of" not in printed and "cycles failed" in printed


def test_a_servo_that_does_not_answer_ends_the_process(hold: Hold, servos: Servos) -> None:
    bench = hold()
    swing(bench)
    servos.all[3].silent = True
    printed = bench.process.communicate(timeout=20)[0]
    assert bench.process.returncode == 1 and "no answer for 0.5 s" in printed and "Traceback" not in printed
    rest = goals(servos)
    assert np.abs(rest - [servo.position for servo in servos.all.values()]).max() < 300
    assert all(servo.torque for servo in servos.all.values()), "the servos hold"


def test_a_cable_that_is_pulled_out_ends_the_process(hold: Hold, servos: Servos) -> None:
    bench = hold()
    swing(bench)
    servos.unplug()
    printed = bench.process.communicate(timeout=20)[0]
    assert bench.process.returncode == 1 and "no answer for 0.5 s" in printed and "Traceback" not in printed


def test_a_blocked_joint_latches_until_the_operator_recovers(hold: Hold, servos: Servos) -> None:
    bench = hold()
    start = np.array(bench.q)
    servos.all[2].blocked = True
    bench.stream(lambda t: (start + np.array([0, 0.6, 0, 0, 0]) * min(1.0, t)).tolist(), 3.0, 60)
    bench.until(lambda: bench.reports[-1].latched)
    assert bench.reports[-1].damping == "shoulder_lift: blocked, overloaded or without power"
    pushed = [abs(written[2] - servos.all[2].position) for _, written in servos.goals]
    assert max(pushed) <= 0.3 / (2 * np.pi / 4095) + 2, "the goal leads by `lead` at most"
    bench.until(lambda: abs(goals(servos)[1] - servos.all[2].position) <= 1)
    servos.all[2].blocked = False
    swing(bench)
    assert bench.reports[-1].latched, "goals do not recover it"
    bench.recover.publish(make(INT, data=1))
    bench.until(lambda: not bench.reports[-1].latched)
    rest = goals(servos)
    swing(bench)
    assert np.abs(goals(servos) - rest).max() > 20


@pytest.mark.parametrize("release", [False, True])
def test_torque_at_the_end_is_as_configured(hold: Hold, servos: Servos, release: bool) -> None:
    bench = hold(*(["--release"] if release else []))
    swing(bench)
    rest = goals(servos)
    bench.process.send_signal(signal.SIGINT)
    printed = bench.process.communicate(timeout=20)[0]
    assert bench.process.returncode == 0, printed
    assert [servo.torque for servo in servos.all.values()] == [not release] * 6
    assert np.abs(goals(servos) - rest).max() < 60


def test_killed_processes_leave_the_servos_holding(hold: Hold, servos: Servos) -> None:
    bench = hold()
    swing(bench)
    holder = bench.pid("holder.py")
    bench.process.kill()
    bench.process.wait()
    bench.until(lambda: not os.path.exists(f"/proc/{holder}"))
    assert all(servo.torque for servo in servos.all.values())
    again = hold()
    os.kill(again.pid("holder.py"), signal.SIGKILL)
    printed = again.process.communicate(timeout=20)[0]
    assert again.process.returncode == 1 and "the process of the arm has ended" in printed
    assert all(servo.torque for servo in servos.all.values())
