"""Faults of the processes and the connection of a Franka arm: each ends with the arm at rest."""

import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from real.bus import make
from tests.real.franka.conftest import ARRAY, Bench, Server
from tests.real.franka.test_protocol import swing

pytestmark = [pytest.mark.realtime, pytest.mark.timeout(120)]
Hold = Callable[..., Bench]


def rests(bench: Bench) -> None:
    """Check that the arm stands still."""
    start = bench.q
    time.sleep(0.3)
    assert np.abs(np.array(bench.q) - start).max() < 0.005


def test_a_frozen_node_leaves_the_arm_at_rest(hold: Hold) -> None:
    bench = hold()
    bench.stream(swing(bench.q), 0.5)
    before = bench.q
    os.kill(bench.process.pid, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(bench.process.pid, signal.SIGCONT)
    bench.until(lambda: bench.reports[-1].damping == "no goals")
    assert not bench.reports[-1].latched and np.abs(np.array(bench.q) - before).max() < 0.15
    rests(bench)
    bench.stream(swing(bench.q), 0.5)
    assert bench.reports[-1].damping == "", "goals are followed again"


def test_a_killed_hand_ends_the_robot_process_with_the_arm_at_rest(hold: Hold) -> None:
    bench = hold()
    bench.stream(swing(bench.q), 0.5)
    os.kill(bench.pid("real.franka.hand"), signal.SIGKILL)
    printed = bench.process.communicate(timeout=20)[0]
    assert bench.process.returncode == 1 and "the process of the hand has ended" in printed
    rests(hold())


def test_a_cut_connection_ends_the_robot_process_and_is_named(hold: Hold, server: Server) -> None:
    bench = hold()
    bench.stream(swing(bench.q), 0.5)
    server.tell(cut=True)
    printed = bench.process.communicate(timeout=20)[0]
    assert bench.process.returncode == 1, printed
    assert "the process of the arm has ended" in printed and "Traceback" not in printed
    rests(hold())


def test_a_flood_of_goals_is_followed_without_a_reflex(hold: Hold) -> None:
    bench = hold()
    start, path, ended = bench.q, swing(bench.q), threading.Event()

    def flood() -> None:
        begin = time.monotonic()
        while not ended.is_set():
            bench.commands.publish(make(ARRAY, data=path(time.monotonic() - begin)))
            time.sleep(0.0002)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        bench.until(lambda: np.abs(np.array(bench.q) - start).max() > 0.1)
        assert bench.reports[-1].damping == ""
    finally:
        ended.set()
        thread.join()
    bench.until(lambda: bench.reports[-1].damping == "no goals")
    assert not bench.reports[-1].latched


def test_a_user_stop_while_the_node_is_frozen_is_told_afterwards(hold: Hold, server: Server) -> None:
    bench = hold()
    bench.stream(swing(bench.q), 0.5)
    os.kill(bench.process.pid, signal.SIGSTOP)
    time.sleep(2.5)  # by then the socket to it is full
    server.tell(robot_mode=5)
    time.sleep(0.5)
    server.tell()
    os.kill(bench.process.pid, signal.SIGCONT)
    bench.until(lambda: bench.reports[-1].latched)
    assert bench.reports[-1].damping == "robot mode UserStopped"
    bench.stream(lambda _: bench.q, 0.5)
    assert bench.reports[-1].latched, "goals do not recover it"
