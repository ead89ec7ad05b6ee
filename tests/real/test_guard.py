"""The guard: what it passes on, what it damps, and that it is alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from real.bus import open_node, qos
from real.control.guard import COMMAND_TIMEOUT, Guard, ReceivedCommand
from real.robots.lowlevel import JUMP, STATE_TIMEOUT, Motors
from real.robots.wire import LOW_COMMAND, LOW_STATE, layout
from robot_rl.robots.go2 import GO2
from robot_rl.robots.panda import PANDA
from robot_rl.util.errors import UserError

MOTORS, WIRE = Motors(GO2), layout(LOW_COMMAND)
STAND = MOTORS.command(np.array(GO2.home))
Build = Callable[..., Any]
PATIENT = """
import real.control.guard
from robot_rl.cli.main import main
real.control.guard.COMMAND_TIMEOUT = real.control.guard.STATE_TIMEOUT = 0.5
real.control.guard.JUMP = 2.0
raise SystemExit(main())
"""
"""`robot-rl` with the limits of `patient`."""


class Bench:
    """A guard that runs, a robot behind it, and a policy that sends `self.raw` at 200 Hz while it is not None."""

    def __init__(self, robot: Any, say: Callable[[str], None] = lambda _text: None):
        self.robot = robot
        self.nodes = [open_node("guard"), open_node("policy")]
        self.guard = Guard(self.nodes[0], GO2)
        self.output = self.nodes[1].publisher(LOW_COMMAND, "lowcmd_wanted", qos.COMMAND)
        assert self.nodes[1].wait_for(lambda: self.output.matched == 1, 30)
        self.raw: bytes | None = None
        self.threads = [threading.Thread(target=f, daemon=True) for f in (lambda: self.guard.run(say), self._command)]
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


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a machine that stops for a third of a second is what most of these tests are about, nor how slowly
    stiffness must grow."""
    monkeypatch.setattr("real.control.guard.JUMP", 2.0)
    monkeypatch.setattr("real.control.guard.COMMAND_TIMEOUT", 0.5)
    monkeypatch.setattr("real.control.guard.STATE_TIMEOUT", 0.5)


@pytest.fixture
def bench(topic_quadruped: Build, eventually: Build) -> Iterator[Bench]:
    robot = topic_quadruped(commands="lowcmd")
    built = Bench(robot)
    try:
        eventually(lambda: robot.is_damped)
        yield built
    finally:
        built.close()


def stand_up(bench: Bench, eventually: Build) -> None:
    """As standing up begins, and goes on."""
    bench.raw = WIRE.seal(MOTORS.command(bench.robot.position, 0.05))
    eventually(lambda: bench.robot.commands and not bench.robot.is_damped)
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: (bench.robot.commands[-1][1]["kp"] == 40).all())


def changed(field: str, value: float) -> bytes:
    command = STAND.copy()
    command["motor_cmd"][field][4] = value
    return WIRE.seal(command)


def off() -> bytes:
    """Sound set-points, and the battery switched off."""
    command = STAND.copy()
    command["bms_cmd"]["off"] = 0xA5
    return WIRE.seal(command)


@pytest.mark.parametrize(
    ("silent", "stale", "reason"), [(0.049, 0.049, ""), (0.051, 0.049, "silence"), (0.049, 0.051, "stale state")]
)
def test_it_waits_for_fifty_milliseconds(
    monkeypatch: pytest.MonkeyPatch, silent: float, stale: float, reason: str
) -> None:
    monkeypatch.setattr("real.control.guard.COMMAND_TIMEOUT", COMMAND_TIMEOUT)
    monkeypatch.setattr("real.control.guard.STATE_TIMEOUT", STATE_TIMEOUT)
    guard = judgement()
    guard.latched, guard._alive = False, 100.0 - stale
    assert guard._judge(100.0, received(1.0, 100.0 - silent)) == reason
    assert guard.latched == bool(reason)


def judgement() -> Guard:
    """Nothing but its judgement, of a robot that stands and was never commanded."""
    guard = Guard.__new__(Guard)
    guard.motors, guard.damping, guard.latched, guard._soft = MOTORS, "silence", True, -float("inf")
    guard.foreign_publisher = ""
    guard._alive, guard._remote, guard._position = float("inf"), False, np.array(GO2.home)[MOTORS.joint]
    return guard


def received(stiffness_scale: float, at: float, position: Any = GO2.home) -> ReceivedCommand:
    command = MOTORS.command(np.array(position), stiffness_scale)
    return ReceivedCommand(b"", MOTORS.refusal(command), command, at)


@pytest.mark.parametrize(("seconds", "last"), [(0.3, 1.0), (0.6, 1.5)], ids=["folds", "rises"])
@pytest.mark.parametrize("gap", [0.0, 0.049], ids=["on time", "with a gap"])
def test_stiffness_grows_as_when_standing_up_and_no_faster(
    monkeypatch: pytest.MonkeyPatch, seconds: float, last: float, gap: float
) -> None:
    """The ramps of real/episode/standing.py, a step every 20 ms, and one of them comes late."""
    monkeypatch.setattr("real.control.guard.JUMP", JUMP)
    for late in range(1, 30):
        guard = judgement()
        for k in range(1, round(seconds / 0.02) + 1):
            now = 0.02 * k + gap * (k == late)
            assert guard._judge(now, received(last * 0.02 * k / seconds, now)) == "", (late, k)
        assert guard._judge(now, received(last, now)) == "" and not guard.latched
    guard = judgement()
    assert guard._judge(0.0, received(0.3, 0.0)) == "" and guard._judge(0.01, received(0.5, 0.01)) == ""
    assert guard._judge(0.02, received(1.0, 0.02)) == "stiffness grew too fast" and guard.latched
    guard.damping = "stiffness grew too fast"
    assert guard._judge(9.0, received(1.0, 9.0)) == "stiffness grew too fast", "time alone does not help"


def test_a_robot_that_was_let_go_for_a_moment_is_not_torn_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("real.control.guard.JUMP", JUMP)
    guard = judgement()
    guard.latched = False
    assert guard._judge(0.0, received(1.0, 0.0)) == ""
    assert guard._judge(1.0, ReceivedCommand(b"", "", MOTORS.damp(), 1.0)) == "" and not guard.latched, (
        "damped as it was told"
    )
    assert guard._judge(1.002, received(1.0, 1.002)) == "stiffness grew too fast"


@pytest.mark.parametrize(
    ("stiffness_scale", "off", "arms"), [(0.05, 0.0, True), (0.3, 0.29, True), (0.31, 0.0, False), (0.05, 0.31, False)]
)
def test_standing_up_begins_where_the_robot_lies(stiffness_scale: float, off: float, arms: bool) -> None:
    guard = judgement()
    wanted = received(stiffness_scale, 0.0, np.array(GO2.home) + off * np.eye(12)[4])
    assert guard._judge(0.0, wanted) == ("" if arms else "silence") and guard.latched != arms
    one = received(0.05, 0.0)
    assert one.command is not None
    one.command["motor_cmd"]["kp"][3] = 0.0
    assert judgement()._judge(0.0, one) == "silence", "a leg that hangs"
    unknown = judgement()
    unknown._position = np.full(12, np.nan)
    assert unknown._judge(0.0, wanted) == "silence"


def test_two_buttons_of_the_remote_damp_the_robot(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.robot.remote[2] = 0x20
    count = len(bench.robot.commands)
    eventually(lambda: len(bench.robot.commands) > count + 100)
    assert not bench.guard.damping, "one alone means something else"
    bench.robot.remote[3] = 0x02
    eventually(lambda: bench.robot.is_damped and bench.guard.damping == "L2 and B of the remote")
    bench.robot.remote[:] = 0
    stood_up(bench, eventually)
    assert bench.guard.events == {"L2 and B of the remote": 1}


def test_it_damps_until_somebody_commands_and_when_nobody_does(bench: Bench, eventually: Build) -> None:
    assert not bench.guard.events
    stand_up(bench, eventually)
    motors = bench.robot.commands[-1][1]
    assert motors["q"].tolist() == pytest.approx(list(GO2.home)) and (motors["kp"] == 40).all()
    bench.raw = None
    eventually(lambda: bench.robot.is_damped and bench.guard.damping)
    assert bench.guard.events == {"silence": 1}
    assert (bench.robot.commands[-1][1]["kd"] == 5).all()


def test_full_stiffness_that_nobody_armed_is_not_passed_on(bench: Bench, eventually: Build) -> None:
    stood_up(bench, eventually)
    assert not bench.guard.events


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (changed("q", float("nan")), "nonfinite command"),
        (changed("q", 4.0), "position out of limits"),
        (changed("kp", 200.0), "gain out of limits"),
        (changed("kd", 0.5), "gain out of limits"),
        (changed("tau", 1.0), "more than set-points and gains"),
        (changed("dq", 1.0), "more than set-points and gains"),
        (off(), "more than set-points and gains"),
        (WIRE.seal(STAND.copy())[:-1] + b"\x00", "damaged command"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_damps_instead_of_passing_on_what_is_not_sound(
    bench: Bench, eventually: Build, raw: bytes, reason: str
) -> None:
    stand_up(bench, eventually)
    bench.raw = raw
    eventually(lambda: bench.guard.damping == reason)
    eventually(lambda: bench.robot.is_damped)
    assert all(np.isfinite(motors["q"]).all() and (motors["kp"] <= 60).all() for _, motors in bench.robot.commands)
    stood_up(bench, eventually)
    assert bench.guard.events == {reason: 1}


@pytest.mark.parametrize("how", ["silent", "frozen"])
def test_it_damps_a_robot_that_says_nothing_new(bench: Bench, eventually: Build, how: str) -> None:
    stand_up(bench, eventually)
    setattr(bench.robot, how, True)
    eventually(lambda: bench.robot.is_damped and bench.guard.damping)
    assert bench.guard.events == {"stale state": 1}
    setattr(bench.robot, how, False)
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
    assert bench.robot.is_damped, "nor after a moment of damping"
    stand_up(bench, eventually)
    assert not bench.guard.latched and not bench.guard.damping


def test_a_policy_that_was_silent_has_to_stand_the_robot_up(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.raw = None
    eventually(lambda: bench.robot.is_damped)
    stood_up(bench, eventually)
    assert bench.guard.events == {"silence": 1}


def test_a_stretch_of_damping_counts_once_with_the_reason_that_began_it(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.raw = changed("kp", 200.0)
    eventually(lambda: bench.robot.is_damped)
    for raw in (changed("q", 4.0), changed("kp", 200.0), changed("q", 4.0)):
        bench.raw = raw
        eventually(lambda raw=raw: bench.guard._newest.raw == raw)
        count = len(bench.robot.commands)
        eventually(lambda: len(bench.robot.commands) > count + 10)  # noqa: B023 - used at once
    assert bench.guard.events == {"gain out of limits": 1} and bench.guard.damping == "gain out of limits"


def test_what_it_refuses_after_a_silence_is_told(bench: Bench, eventually: Build) -> None:
    bench.raw = changed("q", 4.0)
    eventually(lambda: bench.guard.damping == "position out of limits")
    bench.raw = None
    count = len(bench.robot.commands)
    eventually(lambda: len(bench.robot.commands) > count + 400)
    assert bench.guard.damping == "position out of limits", "the silence that follows does not hide it"
    assert bench.guard.events == {"position out of limits": 1}


def test_it_reports_what_it_does_and_the_driver_of_the_robot_hears(bench: Bench, eventually: Build) -> None:
    from real.robots.unitree import UnitreeDriver

    driver = UnitreeDriver(bench.nodes[1], GO2)
    driver.command.close()  # the bench commands in its place
    stand_up(bench, eventually)
    eventually(lambda: driver.reports.latest and not driver.objection(time.monotonic()))
    bench.raw = None
    eventually(lambda: driver.objection(time.monotonic()) == "the guard damps the robot: silence")
    assert driver.damped == {"silence": 1}
    bench.guard.close()
    eventually(lambda: driver.objection(time.monotonic()) == "the guard has gone")


def test_told_to_end_it_waits_for_the_commands_to_end(bench: Bench, eventually: Build) -> None:
    """Ctrl-C of a launch file may reach all at once: the robot is laid down first."""
    stand_up(bench, eventually)
    bench.guard.close()
    count = len(bench.robot.commands)
    eventually(lambda: len(bench.robot.commands) > count + 50)
    assert not bench.robot.is_damped and bench.threads[0].is_alive()
    bench.raw = None
    bench.threads[0].join(30)
    eventually(lambda: bench.robot.is_damped)
    assert bench.guard.timing["rate"] == 500 and "silence" in bench.guard.summary()


def test_told_twice_it_ends_at_once(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.guard.close()
    bench.guard.close()
    begin = time.monotonic()
    bench.threads[0].join(30)
    assert time.monotonic() - begin < 1
    eventually(lambda: bench.robot.is_damped)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whatever_ends_it_the_robot_is_damped(bench: Bench, eventually: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_up(bench, eventually)
    monkeypatch.setattr(bench.guard, "_judge", lambda *_: 1 / 0)
    bench.threads[0].join(30)
    assert not bench.threads[0].is_alive()
    eventually(lambda: bench.robot.is_damped)


def test_who_hears_of_it_cannot_hold_it_up(topic_quadruped: Build, eventually: Build) -> None:
    """A terminal that is gone raises; one that was stopped with Ctrl-S blocks for ever."""
    read, heard = threading.Event(), []

    def say(text: str) -> None:
        heard.append(text)
        if len(heard) > 1:
            read.wait()
        raise BrokenPipeError

    bench = Bench(topic_quadruped(commands="lowcmd"), say)
    try:
        for count in (1, 2):
            stand_up(bench, eventually)
            bench.raw = None
            eventually(lambda: bench.robot.is_damped and bench.guard.damping)
            assert bench.guard.events == {"silence": count}
        assert len(heard) == 2
    finally:
        read.set()
        bench.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT], ids=lambda number: number.name)
def test_told_to_end_by_a_signal_with_nobody_to_talk_to_it_damps_first(
    topic_quadruped: Build, eventually: Build, number: signal.Signals
) -> None:
    """A terminal that is closed, a launcher that was killed: no reader, and a signal."""
    robot = topic_quadruped(commands="lowcmd")
    command = [sys.executable, "-c", PATIENT, "guard", "go2"]
    ended = threading.Event()
    heard = partial(signal.signal, number, signal.SIG_DFL)  # these tests may run under nohup, the guard does not
    with (
        open_node("policy") as node,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heard) as process,
    ):
        assert process.stdout and process.stderr
        try:
            while b"guard of go2 is up" not in (line := process.stderr.readline()):
                assert line, "it ended"  # it may have to do without real-time priority, and says so
            process.stdout.close()
            process.stderr.close()
            bench = SimpleNamespace(robot=robot, raw=None)
            output = node.publisher(LOW_COMMAND, "lowcmd_wanted", qos.COMMAND)
            assert node.wait_for(lambda: output.matched == 1, 30)

            def send() -> None:
                while not ended.wait(1 / 200):
                    if bench.raw is not None:
                        output.publish(bench.raw)

            thread = threading.Thread(target=send)
            thread.start()
            stand_up(bench, eventually)
            count = len(robot.commands)
            eventually(lambda: len(robot.commands) > count + 50)
            assert process.poll() is None and not robot.is_damped, "it goes on in silence"
            process.send_signal(signal.SIGTSTP)
            count = len(robot.commands)
            eventually(lambda: len(robot.commands) > count + 50)
            process.send_signal(number)
            count = len(robot.commands)
            eventually(lambda: len(robot.commands) > count + 50)
            assert process.poll() is None and not robot.is_damped, "it waits for whoever commands the robot"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            eventually(lambda: robot.is_damped)
        finally:
            ended.set()
            process.kill()
        thread.join()


def test_a_second_writer_is_refused_by_name(topic_quadruped: Build, eventually: Build) -> None:
    topic_quadruped(commands="lowcmd")
    with open_node("sport_mode") as rival, open_node("guard") as node:
        rival.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
        probe = node.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
        eventually(probe.other_writers)
        probe.close()
        with pytest.raises(UserError, match="/sport_mode already sends motor commands on /lowcmd; stop it first"):
            Guard(node, GO2)


@pytest.mark.parametrize(
    ("kind", "topic"), [(LOW_COMMAND, "lowcmd"), (LOW_COMMAND, "lowcmd_wanted"), (LOW_STATE, "lowstate")]
)
def test_a_writer_that_comes_later_has_the_robot_damped_and_is_named(
    bench: Bench, eventually: Build, kind: str, topic: str
) -> None:
    stand_up(bench, eventually)
    with open_node("sport_mode") as rival:
        rival.publisher(kind, topic, qos.COMMAND)
        eventually(lambda: bench.robot.is_damped and bench.guard.damping)
        assert "/sport_mode" in bench.guard.damping and f"/{topic}" in bench.guard.damping and bench.guard.latched
        assert bench.guard.foreign_publisher
    eventually(lambda: not bench.guard.foreign_publisher)
    stood_up(bench, eventually)


def test_it_says_what_it_misses(private_domain: int) -> None:
    with open_node("guard") as node:
        with pytest.raises(UserError, match="no state of go2 on /lowstate within 0.1 s.*robot-rl twin go2"):
            Guard(node, GO2, timeout=0.1)
        with pytest.raises(UserError, match="'panda' needs no guard"):
            Guard(node, PANDA)
