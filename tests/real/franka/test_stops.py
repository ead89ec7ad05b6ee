"""Stops of a Franka arm by the robot, by a person at the robot, and by contact."""

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from real.bus import make, open_node, qos
from real.topics import INT
from tests.real.franka.conftest import ARRAY, HOST, Bench, Server
from tests.real.franka.test_protocol import swing

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(120)]
Hold = Callable[..., Bench]
GUIDING, STOPPED = 3, 5
"""Numbers of robot modes on the wire."""


def recover(bench: Bench) -> None:
    bench.recover.publish(make(INT, data=1))
    bench.until(lambda: not bench.reports[-1].latched)


@pytest.mark.parametrize(("told", "said"), [
    ({"tau_ext_hat_filtered": [0, 0, 0, 31, 0, 0, 0]}, "external torque of 31 N m at a joint, limit 25 N m"),
    ({"O_F_ext_hat_K": [30, 0, -40, 0, 0, 0]}, "external force of 50 N, limit 40 N"),
])  # fmt: skip
def test_contact_stops_the_arm_until_the_operator_recovers(
    hold: Hold, server: Server, told: dict[str, list[float]], said: str
) -> None:
    bench = hold()
    bench.stream(swing(bench.q), 0.5)
    server.tell(**told)
    bench.until(lambda: bench.reports[-1].latched)
    server.tell()
    stopped = bench.q
    bench.stream(swing(stopped), 0.5)
    assert bench.reports[-1].damping == said, "goals do not recover it"
    assert np.abs(np.array(bench.q) - stopped).max() < 0.1, "it braked"
    recover(bench)
    bench.stream(swing(bench.q), 0.5)
    assert bench.reports[-1].damping == ""


def test_a_user_stop_in_motion_latches_and_is_named(hold: Hold, server: Server) -> None:
    bench = hold()
    bench.stream(swing(bench.q), 0.5)
    server.tell(robot_mode=STOPPED, abort=[])
    bench.until(lambda: bench.reports[-1].latched)
    assert "robot mode UserStopped" in bench.reports[-1].damping
    bench.recover.publish(make(INT, data=1))  # while the button is still pressed
    bench.stream(lambda _: bench.q, 0.3)
    assert bench.reports[-1].latched
    server.tell(robot_mode=1)  # the button is released
    bench.until(lambda: bench.states.latest and bench.reports)
    recover(bench)


def test_an_arm_in_guiding_mode_is_not_moved(hold: Hold, server: Server) -> None:
    server.tell(robot_mode=GUIDING)
    bench = hold()
    bench.until(lambda: bench.reports[-1].latched)
    assert bench.reports[-1].damping == "robot mode Guiding"
    start = bench.q
    bench.stream(swing(start), 0.5)
    assert np.abs(np.array(bench.q) - start).max() < 0.005
    server.tell()
    time.sleep(0.1)
    assert bench.reports[-1].latched, "the end of guiding alone does not start motion"
    recover(bench)


def test_an_error_at_the_start_is_named(hold: Hold, server: Server) -> None:
    errors = [False] * 41
    errors[0] = True
    server.tell(robot_mode=4, errors=errors)
    bench = hold()
    bench.until(lambda: bench.reports[-1].latched)
    assert bench.reports[-1].damping == "robot mode Reflex: joint_position_limits_violation"


def test_two_programs_cannot_move_the_arm(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = hold()
    start = bench.q
    for name, value in bench.environment.items():
        monkeypatch.setenv(name, value)
    other = open_node("other")
    try:
        commands = other.publisher(ARRAY, "forward_position_controller/commands", qos.COMMAND)
        bench.until(lambda: commands.matched)
        bench.stream(lambda _: start, 1.0)  # the node looks twice a second
        bench.stream(swing(start), 0.5)
        assert np.abs(np.array(bench.q) - start).max() < 0.005 and bench.reports[-1].damping == "no goals"
    finally:
        other.close()


def test_a_robot_of_another_version_is_refused(server: Server) -> None:
    server.tell(version=9)
    command = [sys.executable, "-m", "robot_rl.cli.main", "robot", "fr3", "--host", HOST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "version" in done.stderr.lower(), done.stderr
    assert "Traceback" not in done.stderr
