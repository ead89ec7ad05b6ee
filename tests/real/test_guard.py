"""The guard: what it passes on, what it damps, and that it is alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from real.bus import open_node, qos
from real.guard import Guard
from real.robots.lowlevel import Motors
from real.robots.wire import LOW_COMMAND, layout
from robot_rl.errors import UserError
from robot_rl.robots.go2 import GO2
from robot_rl.robots.panda import PANDA

MOTORS, WIRE = Motors(GO2), layout(LOW_COMMAND)
STAND = MOTORS.command(np.array(GO2.home))
Build = Callable[..., Any]


class Bench:
    """A guard that runs, a robot behind it, and a policy that sends `self.raw` at 200 Hz while it is not None."""

    def __init__(self, robot: Any):
        self.robot = robot
        self.nodes = [open_node("guard"), open_node("policy")]
        self.guard = Guard(self.nodes[0], GO2)
        self.output = self.nodes[1].publisher(LOW_COMMAND, "lowcmd_wanted", qos.COMMAND)
        assert self.nodes[1].wait_for(lambda: self.output.matched == 1, 30)
        self.raw: bytes | None = None
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self.guard.run, self._command)]
        self._ended = threading.Event()
        for thread in self.threads:
            thread.start()

    def _command(self) -> None:
        while not self._ended.wait(1 / 200):
            if self.raw is not None:
                self.output.publish(self.raw)

    def close(self) -> None:
        self._ended.set()
        self.guard.close()
        for thread in self.threads:
            thread.join(30)
        for node in self.nodes:
            node.close()


@pytest.fixture
def bench(topic_quadruped: Build, eventually: Build) -> Iterator[Bench]:
    robot = topic_quadruped(commands="lowcmd")
    built = Bench(robot)
    try:
        eventually(lambda: robot.limp)
        yield built
    finally:
        built.close()


def changed(field: str, value: float) -> bytes:
    command = STAND.copy()
    command["motor_cmd"][field][4] = value
    return WIRE.seal(command)


def test_it_damps_until_somebody_commands_and_when_nobody_does(bench: Bench, eventually: Build) -> None:
    assert not bench.guard.events
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    motors = bench.robot.commands[-1][1]
    assert motors["q"].tolist() == pytest.approx(list(GO2.home)) and (motors["kp"] == 40).all()
    bench.raw = None
    eventually(lambda: bench.robot.limp)
    assert bench.guard.events == {"silence": 1}
    assert (bench.robot.commands[-1][1]["kd"] == 5).all()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (changed("q", float("nan")), "nonfinite command"),
        (changed("q", 4.0), "position out of limits"),
        (changed("kp", 200.0), "gain out of limits"),
        (changed("tau", 99.0), "torque or speed out of limits"),
        (WIRE.seal(STAND.copy())[:-1] + b"\x00", "damaged command"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_damps_instead_of_passing_on_what_is_not_sound(
    bench: Bench, eventually: Build, raw: bytes, reason: str
) -> None:
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    bench.raw = raw
    eventually(lambda: bench.guard.damping == reason)
    eventually(lambda: bench.robot.limp)
    assert all(np.isfinite(motors["q"]).all() and (motors["kp"] <= 60).all() for _, motors in bench.robot.commands)
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    assert bench.guard.events == {reason: 1}


def test_it_damps_a_robot_that_it_does_not_hear(bench: Bench, eventually: Build) -> None:
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    bench.robot.silent = True
    eventually(lambda: bench.robot.limp)
    assert bench.guard.events == {"stale state": 1}
    bench.robot.silent = False
    stood_up(bench, eventually)


def stood_up(bench: Bench, eventually: Build) -> None:
    """What has become of the robot meanwhile nobody knows: full stiffness does not return by itself."""
    bench.raw = WIRE.seal(STAND.copy())
    count = len(bench.robot.commands)
    eventually(lambda: len(bench.robot.commands) > count + 100)
    assert not any(motors["kp"].any() for _, motors in bench.robot.commands[count + 25 :]) and bench.guard.latched
    bench.raw = WIRE.seal(MOTORS.damp())
    count = len(bench.robot.commands)
    eventually(lambda: len(bench.robot.commands) > count + 50)
    bench.raw = WIRE.seal(STAND.copy())
    count = len(bench.robot.commands)
    eventually(lambda: len(bench.robot.commands) > count + 50)
    assert bench.robot.limp, "nor after a moment of damping"
    bench.raw = WIRE.seal(MOTORS.command(np.array(GO2.home), 0.05))
    eventually(lambda: not bench.robot.limp)
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: (bench.robot.commands[-1][1]["kp"] == 40).all())
    assert not bench.guard.latched and not bench.guard.damping


def test_a_policy_that_was_silent_has_to_stand_the_robot_up(bench: Bench, eventually: Build) -> None:
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    bench.raw = None
    eventually(lambda: bench.robot.limp)
    stood_up(bench, eventually)
    assert bench.guard.events == {"silence": 1}


def test_a_stretch_of_damping_counts_once_with_the_reason_that_began_it(bench: Bench, eventually: Build) -> None:
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    bench.raw = changed("kp", 200.0)
    eventually(lambda: bench.robot.limp)
    for raw in (changed("q", 4.0), changed("kp", 200.0), changed("q", 4.0)):
        bench.raw = raw
        eventually(lambda raw=raw: bench.guard._wanted[0] == raw)
        count = len(bench.robot.commands)
        eventually(lambda: len(bench.robot.commands) > count + 10)  # noqa: B023 - used at once
    assert bench.guard.events == {"gain out of limits": 1} and bench.guard.damping == "gain out of limits"


def test_it_reports_what_it_does_and_the_driver_of_the_robot_hears(bench: Bench, eventually: Build) -> None:
    from real.robots.unitree import UnitreeDriver

    driver = UnitreeDriver(bench.nodes[1], GO2)
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: driver.reports.latest and not driver.objection(time.monotonic()))
    bench.raw = None
    eventually(lambda: driver.objection(time.monotonic()) == "the guard damps the robot: silence")
    assert driver.damped == {"silence": 1}
    bench.guard.close()
    eventually(lambda: driver.objection(time.monotonic()) == "the guard has gone")


def test_told_to_end_it_waits_for_the_commands_to_end(bench: Bench, eventually: Build) -> None:
    """Ctrl-C of a launch file may reach all at once: the robot is laid down first."""
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    bench.guard.close()
    count = len(bench.robot.commands)
    eventually(lambda: len(bench.robot.commands) > count + 50)
    assert not bench.robot.limp and bench.threads[0].is_alive()
    bench.raw = None
    bench.threads[0].join(30)
    eventually(lambda: bench.robot.limp)
    assert bench.guard.timing["rate"] == 500 and "silence" in bench.guard.summary()


def test_told_twice_it_ends_at_once(bench: Bench, eventually: Build) -> None:
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: not bench.robot.limp)
    bench.guard.close()
    bench.guard.close()
    begin = time.monotonic()
    bench.threads[0].join(30)
    assert time.monotonic() - begin < 1
    eventually(lambda: bench.robot.limp)


def test_a_second_writer_is_refused_by_name(topic_quadruped: Build, eventually: Build) -> None:
    topic_quadruped(commands="lowcmd")
    with open_node("sport_mode") as rival, open_node("guard") as node:
        rival.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
        probe = node.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
        eventually(probe.other_writers)
        probe.close()
        with pytest.raises(UserError, match="/sport_mode already sends motor commands on /lowcmd; stop it first"):
            Guard(node, GO2)


def test_it_says_what_it_misses(private_domain: int) -> None:
    with open_node("guard") as node:
        with pytest.raises(UserError, match="no state of go2 on /lowstate within 0.1 s.*robot-rl twin go2"):
            Guard(node, GO2, timeout=0.1)
        with pytest.raises(UserError, match="'panda' needs no guard"):
            Guard(node, PANDA)
