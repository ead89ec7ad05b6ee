"""The guard: which commands it passes on, when it damps, and other publishers."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest

from real.bus import open_node, qos
from real.control.guard import COMMAND_TIMEOUT, CommandCheck, Guard, ReceivedCommand
from real.drivers import open_driver
from real.drivers.lowlevel import JUMP, STATE_TIMEOUT, Motors
from real.drivers.wire import LOW_COMMAND, LOW_STATE, layout
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
"""`robot-rl` with the time limits of `patient`."""


class Policy:
    """A policy that sends `self.raw` at 200 Hz unless None, and its robot."""

    def __init__(self, robot: Any):
        self.robot, self.node = robot, open_node("policy")
        self.output = self.node.publisher(LOW_COMMAND, "lowcmd_wanted", qos.COMMAND)
        assert self.node.wait_for(lambda: self.output.matched == 1, 30)
        self.raw: bytes | None = None
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._command, daemon=True)
        self._thread.start()

    def _command(self) -> None:
        while not self._ended.wait(1 / 200):
            if self.raw is not None:
                self.output.publish(self.raw)

    def close(self) -> None:
        self._ended.set()
        self._thread.join(30)
        self.node.close()


class Bench(Policy):
    """A running guard in this process, with a policy and its robot."""

    def __init__(self, robot: Any, say: Callable[[str], None] = lambda _text: None):
        self.guard_node = open_node("guard")
        self.guard = Guard(self.guard_node, GO2)
        super().__init__(robot)
        self.thread = threading.Thread(target=self.guard.run, args=(say,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        super().close()
        self.guard.close()
        self.thread.join(30)
        self.guard_node.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerate stalls of a third of a second and any growth of stiffness."""
    monkeypatch.setattr("real.control.guard.JUMP", 2.0)
    monkeypatch.setattr("real.control.guard.COMMAND_TIMEOUT", 0.5)
    monkeypatch.setattr("real.control.guard.STATE_TIMEOUT", 0.5)


@pytest.fixture
def bench(topic_quadruped: Build, eventually: Build) -> Iterator[Bench]:
    robot = topic_quadruped(commands="lowcmd")
    built = Bench(robot)
    with closing(built):
        eventually(lambda: robot.is_damped)
        yield built


def stand_up(bench: Policy, eventually: Build) -> None:
    """Send the first command of standing up, then full stiffness."""
    bench.raw = WIRE.seal(MOTORS.command(bench.robot.position, 0.05))
    eventually(lambda: bench.robot.commands and not bench.robot.is_damped)
    bench.raw = WIRE.seal(STAND.copy())
    eventually(lambda: (bench.robot.commands[-1][1]["kp"] == 40).all())


def ticks(robot: Any, eventually: Build, count: int = 50) -> None:
    """Wait for `count` more commands to the motors."""
    goal = len(robot.commands) + count
    eventually(lambda: len(robot.commands) > goal)


def changed(field: str, value: float) -> bytes:
    """Return set-points of which one differs, or with `off` the command to switch off the battery."""
    command = STAND.copy()
    if field == "off":
        command["bms_cmd"]["off"] = value
    else:
        command["motor_cmd"][field][4] = value
    return WIRE.seal(command)


@pytest.mark.parametrize(("silent", "stale", "reason"), [(49, 49, ""), (51, 49, "silence"), (49, 51, "stale state")])
def test_damps_after_fifty_milliseconds(monkeypatch: Any, silent: int, stale: int, reason: str) -> None:
    monkeypatch.setattr("real.control.guard.COMMAND_TIMEOUT", COMMAND_TIMEOUT)
    monkeypatch.setattr("real.control.guard.STATE_TIMEOUT", STATE_TIMEOUT)
    guard = check()
    guard.latched, guard.alive = False, 100.0 - stale / 1000
    assert guard.reason(100.0, received(1.0, 100.0 - silent / 1000)) == reason and guard.latched == bool(reason)


def check() -> CommandCheck:
    """Return the check of a robot that stands at home and was never commanded."""
    made = CommandCheck(MOTORS, GO2.driver)
    made.alive, made.position = float("inf"), np.array(GO2.home)[MOTORS.joint]
    return made


def received(stiffness_scale: float, at: float, position: Any = GO2.home) -> ReceivedCommand:
    command = MOTORS.command(np.array(position), stiffness_scale)
    return ReceivedCommand(b"", MOTORS.refusal(command), command, at)


@pytest.mark.parametrize(("seconds", "last"), [(0.3, 1.0), (0.6, 1.5)], ids=["folds", "rises"])
@pytest.mark.parametrize("gap", [0.0, 0.049], ids=["on time", "with a gap"])
def test_stiffness_may_grow_as_in_standing_up(monkeypatch: Any, seconds: float, last: float, gap: float) -> None:
    """The ramps of real/episode/standing.py: a step every 20 ms, one of them late."""
    monkeypatch.setattr("real.control.guard.JUMP", JUMP)
    for late in range(1, 30):
        guard = check()
        for k in range(1, round(seconds / 0.02) + 1):
            now = 0.02 * k + gap * (k == late)
            assert guard.reason(now, received(last * 0.02 * k / seconds, now)) == "", (late, k)
        assert guard.reason(now, received(last, now)) == "" and not guard.latched
    guard = check()
    assert guard.reason(0.0, received(0.3, 0.0)) == "" and guard.reason(0.01, received(0.5, 0.01)) == ""
    assert guard.reason(0.02, received(1.0, 0.02)) == "stiffness grew too fast" and guard.latched
    guard.damping = "stiffness grew too fast"
    assert guard.reason(9.0, received(1.0, 9.0)) == "stiffness grew too fast", "still refused later"


def test_full_stiffness_directly_after_damping_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("real.control.guard.JUMP", JUMP)
    guard = check()
    guard.latched = False
    assert guard.reason(0.0, received(1.0, 0.0)) == ""
    assert guard.reason(1.0, ReceivedCommand(b"", "", MOTORS.damp(), 1.0)) == "" and not guard.latched
    assert guard.reason(1.002, received(1.0, 1.002)) == "stiffness grew too fast"


@pytest.mark.parametrize(
    ("scale", "distance", "arms"), [(0.05, 0.0, True), (0.3, 0.29, True), (0.31, 0.0, False), (0.05, 0.31, False)]
)
def test_standing_up_begins_softly_and_at_the_measured_position(scale: float, distance: float, arms: bool) -> None:
    guard = check()
    wanted = received(scale, 0.0, np.array(GO2.home) + distance * np.eye(12)[4])
    assert guard.reason(0.0, wanted) == ("" if arms else "silence") and guard.latched != arms
    partial_command = received(0.05, 0.0)
    partial_command.command["motor_cmd"]["kp"][3] = 0.0
    assert check().reason(0.0, partial_command) == "silence", "a joint without stiffness"
    unknown = check()
    unknown.position = np.full(12, np.nan)
    assert unknown.reason(0.0, wanted) == "silence"


def press_l2_and_b(bench: Bench, eventually: Build) -> None:
    bench.robot.remote[2] = 0x20
    ticks(bench.robot, eventually, 100)
    assert not bench.guard.damping, "L2 alone has another meaning"
    bench.robot.remote[3] = 0x02


def send(raw: bytes | None) -> Callable[[Bench, Build], None]:
    return lambda bench, _: setattr(bench, "raw", raw)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (send(None), "silence"),
        (send(changed("q", float("nan"))), "nonfinite command"),
        (send(changed("kp", 200.0)), "gain out of limits"),
        (send(changed("off", 0xA5)), "more than set-points and gains"),
        (send(WIRE.seal(STAND.copy())[:-1] + b"\x00"), "damaged command"),
        (lambda bench, _: setattr(bench.robot, "silent", True), "stale state"),
        (lambda bench, _: setattr(bench.robot, "frozen", True), "stale state"),
        (press_l2_and_b, "L2 and B of the remote"),
    ],
)
def test_fault_damps_until_the_robot_is_stood_up(bench: Bench, eventually: Build, fault: Any, reason: str) -> None:
    assert not bench.guard.events
    stand_up(bench, eventually)
    assert bench.robot.commands[-1][1]["q"].tolist() == pytest.approx(list(GO2.home))
    fault(bench, eventually)
    eventually(lambda: bench.guard.damping == reason and bench.robot.is_damped)
    assert (bench.robot.commands[-1][1]["kd"] == 5).all()
    assert all(np.isfinite(motors["q"]).all() and (motors["kp"] <= 60).all() for _, motors in bench.robot.commands)
    bench.robot.silent = bench.robot.frozen = False
    bench.robot.remote[:] = 0
    assert_latched(bench, eventually)
    assert bench.guard.events == {reason: 1}


def assert_latched(bench: Bench, eventually: Build) -> None:
    """Check that full stiffness is refused until the robot is stood up, also after commanded damping."""
    bench.raw = WIRE.seal(STAND.copy())
    count = len(bench.robot.commands)
    ticks(bench.robot, eventually, 100)
    assert not any(motors["kp"].any() for _, motors in bench.robot.commands[count + 25 :]) and bench.guard.latched
    bench.raw = WIRE.seal(MOTORS.damp())
    ticks(bench.robot, eventually)
    bench.raw = WIRE.seal(STAND.copy())
    ticks(bench.robot, eventually)
    assert bench.robot.is_damped
    stand_up(bench, eventually)
    assert not bench.guard.latched and not bench.guard.damping


def test_damping_is_counted_once_with_its_first_reason(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.raw = changed("kp", 200.0)
    eventually(lambda: bench.robot.is_damped)
    for raw in (changed("q", 4.0), changed("kp", 200.0), changed("q", 4.0)):
        bench.raw = raw
        ticks(bench.robot, eventually)
    assert bench.guard.events == {"gain out of limits": 1} and bench.guard.damping == "gain out of limits"


def test_refusal_after_a_silence_is_reported(bench: Bench, eventually: Build) -> None:
    bench.raw = changed("q", 4.0)
    eventually(lambda: bench.guard.damping == "position out of limits")
    bench.raw = None
    ticks(bench.robot, eventually, 400)
    assert bench.guard.damping == "position out of limits", "the next silence does not replace it"
    assert bench.guard.events == {"position out of limits": 1}


def test_driver_receives_the_guards_reports(bench: Bench, eventually: Build) -> None:
    driver = open_driver(bench.node, GO2)
    driver.commands.publishers[0].close()  # the bench sends the commands
    stand_up(bench, eventually)
    eventually(lambda: driver.commands.guard.latest and not driver.objection(time.monotonic()))
    bench.raw = None
    eventually(lambda: driver.objection(time.monotonic()) == "the guard damps the robot: silence")
    assert driver.damped == {"silence": 1}
    bench.guard.close()
    eventually(lambda: driver.objection(time.monotonic()) == "the guard has gone")


def test_close_waits_for_the_end_of_commands(bench: Bench, eventually: Build) -> None:
    """Ctrl-C of a launch file may reach guard and policy at once: the policy first lays the robot down."""
    stand_up(bench, eventually)
    bench.guard.close()
    ticks(bench.robot, eventually)
    assert not bench.robot.is_damped and bench.thread.is_alive()
    bench.raw = None
    bench.thread.join(30)
    eventually(lambda: bench.robot.is_damped)
    assert bench.guard.timing["rate"] == 500 and "silence" in bench.guard.summary()


def test_second_close_ends_at_once(bench: Bench, eventually: Build) -> None:
    stand_up(bench, eventually)
    bench.guard.close()
    bench.guard.close()
    begin = time.monotonic()
    bench.thread.join(30)
    assert time.monotonic() - begin < 1
    eventually(lambda: bench.robot.is_damped)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_ends_with_damping(bench: Bench, eventually: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_up(bench, eventually)
    monkeypatch.setattr(bench.guard, "reason", lambda *_: 1 / 0)
    bench.thread.join(30)
    assert not bench.thread.is_alive()
    eventually(lambda: bench.robot.is_damped)


def test_blocked_or_closed_output_does_not_delay_the_guard(topic_quadruped: Build, eventually: Build) -> None:
    """A closed terminal raises; one stopped with Ctrl-S blocks."""
    read, printed = threading.Event(), []

    def say(text: str) -> None:
        printed.append(text)
        if len(printed) > 1:
            read.wait()
        raise BrokenPipeError

    bench = Bench(topic_quadruped(commands="lowcmd"), say)
    try:
        for count in (1, 2):
            stand_up(bench, eventually)
            bench.raw = None
            eventually(lambda: bench.robot.is_damped and bench.guard.damping)
            assert bench.guard.events == {"silence": count}
        assert len(printed) == 2
    finally:
        read.set()
        bench.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT], ids=lambda number: number.name)
def test_signal_with_closed_output_ends_with_damping(topic_quadruped: Build, eventually: Build, number: Any) -> None:
    """A closed terminal or a killed launcher: no reader, and a signal."""
    robot, pipe = topic_quadruped(commands="lowcmd"), subprocess.PIPE
    command = [sys.executable, "-c", PATIENT, "guard", "go2"]
    default = partial(signal.signal, number, signal.SIG_DFL)  # tests may run under nohup
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, preexec_fn=default) as process:
        try:
            while b"guard of go2 is up" not in (line := process.stderr.readline()):
                assert line  # a warning about real-time priority may come first
            process.stdout.close()
            process.stderr.close()
            with closing(Policy(robot)) as policy:
                stand_up(policy, eventually)
                ticks(robot, eventually)
                assert process.poll() is None and not robot.is_damped
                for sent in (signal.SIGTSTP, number):
                    process.send_signal(sent)
                    ticks(robot, eventually)
                assert process.poll() is None and not robot.is_damped, "waits for the policy to stop sending"
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0
                eventually(lambda: robot.is_damped)
        finally:
            process.kill()


def test_second_publisher_at_the_start_is_refused(topic_quadruped: Build, eventually: Build) -> None:
    topic_quadruped(commands="lowcmd")
    with open_node("sport_mode") as rival, open_node("guard") as node:
        rival.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
        probe = node.publisher(LOW_COMMAND, "lowcmd", qos.COMMAND)
        eventually(probe.other_writers)
        probe.close()
        with pytest.raises(UserError, match="/sport_mode already sends motor commands on /lowcmd; stop it first"):
            Guard(node, GO2)


@pytest.mark.parametrize("topic", ["lowcmd", "lowcmd_wanted", "lowstate"])
def test_later_publisher_damps_the_robot(bench: Bench, eventually: Build, topic: str) -> None:
    stand_up(bench, eventually)
    with open_node("sport_mode") as rival:
        rival.publisher(LOW_STATE if topic == "lowstate" else LOW_COMMAND, topic, qos.COMMAND)
        eventually(lambda: bench.robot.is_damped and bench.guard.damping)
        assert "/sport_mode" in bench.guard.damping and f"/{topic}" in bench.guard.damping and bench.guard.latched
        assert bench.guard.foreign_publisher
    eventually(lambda: not bench.guard.foreign_publisher)
    assert_latched(bench, eventually)


def test_missing_state_or_other_robot_is_refused(private_domain: int) -> None:
    with open_node("guard") as node:
        with pytest.raises(UserError, match="no state of go2 on /lowstate within 0.1 s.*robot-rl twin go2"):
            Guard(node, GO2, timeout=0.1)
        with pytest.raises(UserError, match="'panda' needs no guard"):
            Guard(node, PANDA)
