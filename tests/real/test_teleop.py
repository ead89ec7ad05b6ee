"""Teleop devices with real terminals, event streams and DDS between processes."""

import fcntl
import math
import os
import pty
import queue
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.bus import Node, QoS, Stamped, decode, encode, make, open_node
from real.bus.names import check_name
from real.teleop import AXES, BUTTONS, RELEASED, Finished, Keyboard, Operator, OperatorInput, stream, until_signal
from real.teleop.check import watch
from real.teleop.commands import QOS, TYPE, from_joy, joy_topic, to_joy
from robot_rl.cli.main import main
from robot_rl.cli.teleop import Teleop
from robot_rl.util.errors import UnknownName, UserError

WAIT = 20.0  # longest wait for an event, s
TELEOP = [sys.executable, "-m", "robot_rl.cli.main", "teleop"]
FULL = Operator(True, (1.0, -0.5, 0.25), -1.0, success=True, reset=True)
MOVING = Operator(True, (1.0, 0.0, 0.0))


@pytest.fixture(scope="module")
def node(private_domain: int) -> Iterator[Node]:
    with open_node("robot", "/arm") as opened:
        yield opened


class Ear:
    """Subscriber that keeps all messages of the topic."""

    def __init__(self, node: Node):
        self.heard: queue.Queue[Any] = queue.Queue()
        self.subscription = node.subscribe(TYPE, joy_topic("panda"), QOS, callback=lambda s: self.heard.put(s.msg))

    def until(self, fits: Callable[[Operator], bool]) -> Operator:
        end = time.monotonic() + WAIT
        while not fits(operator := from_joy(self.heard.get(timeout=max(end - time.monotonic(), 0.01)))):
            pass
        return operator

    def last(self) -> Operator:
        """Return the last message after its publisher has left; messages may still arrive then."""
        end = time.monotonic() + WAIT
        while self.subscription.matched and time.monotonic() < end:
            time.sleep(0.002)
        while self.subscription.wait(0.3):
            pass
        return from_joy(self.subscription.latest.msg)


@pytest.fixture
def ear(node: Node) -> Iterator[Ear]:
    yield (ear := Ear(node))
    ear.subscription.close()


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Master and slave file descriptors of a terminal."""
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


@pytest.fixture
def session(in_terminal: Callable[..., Any]) -> Any:
    """`robot-rl teleop keyboard` in its own terminal."""
    return in_terminal("teleop", "keyboard", "--ros-args", "-r", "__ns:=/arm")


class Keys:
    """Keyboard of a real terminal, in this process, with a fake clock."""

    def __init__(self, master: int, slave: int):
        self.master, self.slave, self.now = master, slave, 100.0
        self.keyboard = Keyboard(slave, lambda: self.now)

    def read(self, keys: bytes = b"", after: float = 0.0) -> Operator:
        self.now += after
        if keys:
            os.write(self.master, keys)
            waiting = bytearray(4)  # the kernel delivers them later
            end = time.monotonic() + WAIT
            while int.from_bytes(waiting, sys.byteorder) < len(keys):
                assert time.monotonic() < end
                select.select([self.slave], [], [], WAIT)
                fcntl.ioctl(self.slave, termios.FIONREAD, waiting)
        return self.keyboard.read()


@pytest.fixture
def keys(terminal: tuple[int, int]) -> Iterator[Keys]:
    yield (keys := Keys(*terminal))
    keys.keyboard.close()


# ---- the message -------------------------------------------------------------------------------------------------
unit = st.floats(-1.0, 1.0, width=32)
operators = st.builds(Operator, st.booleans(), st.tuples(unit, unit, unit), unit, *(st.booleans() for _ in range(4)))


@settings(deadline=None, max_examples=60)
@given(operators)
def test_message_round_trip(operator: Operator) -> None:
    assert from_joy(decode(bytes(encode(to_joy(operator), TYPE)), TYPE)) == operator


anything = st.one_of(
    st.none(),
    st.text(max_size=3),
    st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=2)), max_size=6),
    st.lists(st.floats(width=32), min_size=4, max_size=4).map(lambda v: np.array(v, np.float32)),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6).map(lambda v: np.array(v, np.int32)),
)


@settings(deadline=None, max_examples=60)
@given(anything, anything)
def test_any_message_gives_input_within_bounds(axes: Any, buttons: Any) -> None:
    operator = from_joy(SimpleNamespace(axes=axes, buttons=buttons))
    assert all(-1.0 <= value <= 1.0 for value in (*operator.motion, operator.gripper))
    if operator.held:
        ours = len(axes) in (4, len(AXES)) and len(buttons) == len(BUTTONS) and buttons[0] == 1
        assert ours or (len(axes), len(buttons)) == (8, 11) or len(axes) == 6
        assert np.isfinite(np.asarray(axes, float)).all()


def test_invalid_joy_gives_no_control() -> None:
    assert from_joy(None) == RELEASED
    for axes, buttons in ((3, 5), (4, 4), (9, 9), (0, 0)):
        assert from_joy(make(TYPE, axes=[1.0] * axes, buttons=[1] * buttons)) == RELEASED, "of another program"
    pressed = from_joy(make(TYPE, axes=[0.0] * 4, buttons=[2, -1, 2, -1, 2]))
    assert pressed == Operator(stop=True), "other buttons need exactly 1"
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert from_joy(make(TYPE, axes=[1.0, bad, 0.0, -1.0], buttons=[1, 0, 0, 1, 0])) == Operator(stop=True)


# ---- the receiving side ------------------------------------------------------------------------------------------
@pytest.fixture
def inputs() -> OperatorInput:
    return OperatorInput(None)


def test_input_is_lost_or_none_after_the_timeout(inputs: OperatorInput) -> None:
    assert inputs.read(10.0) is None
    inputs.receive(MOVING, 10.0)
    assert inputs.read(10.0) == inputs.read(10.099) == MOVING
    assert inputs.read(10.101) == inputs.read(99.0) == Operator(lost=True)
    inputs.receive(RELEASED, 99.1)
    assert inputs.read(99.1) == RELEASED, "no control lingers after a silence"
    assert inputs.read(99.201) is None


def test_control_lasts_50_ms_longer_than_the_enable_button(inputs: OperatorInput) -> None:
    moving = Operator(True, (0.5, 0.0, 0.0), -1.0)
    for now, reading in ((1.0, moving), (1.02, replace(moving, held=False)), (1.06, moving), (1.08, RELEASED)):
        inputs.receive(reading, now)
        operator = inputs.read(now)
        assert operator is not None and operator.held and operator.motion[0] == (0.5 if reading.held else 0.0)
    inputs.receive(RELEASED, 1.12)
    assert inputs.read(1.129) == Operator(held=True) and inputs.read(1.131) == RELEASED


def test_motion_in_the_dead_band_is_0(inputs: OperatorInput) -> None:
    inputs.receive(Operator(True, (0.029, -0.031, -0.01)), 1.0)
    assert inputs.read(1.0) == Operator(True, (0.0, -0.031, 0.0))


def test_press_between_two_reads_is_reported_once(inputs: OperatorInput) -> None:
    for now, reading in enumerate([RELEASED, Operator(success=True), Operator(success=True), RELEASED]):
        inputs.receive(reading, now / 100)
    assert inputs.read(0.03) == Operator(success=True) and inputs.read(0.03) == RELEASED
    inputs.receive(Operator(success=True), 0.05)
    inputs.receive(Operator(success=True, failure=True), 0.06)
    assert inputs.read(0.06) == Operator(success=True, failure=True)
    assert inputs.read(0.06) == RELEASED, "still down: the same press"


def test_stop_is_reported_while_down_and_after_its_device_is_lost(inputs: OperatorInput) -> None:
    inputs.receive(Operator(stop=True), 1.0)
    assert inputs.read(1.0) == inputs.read(1.05) == Operator(stop=True)
    inputs.receive(RELEASED, 1.06)
    inputs.receive(replace(MOVING, stop=True), 1.08)
    assert inputs.read(9.0) == Operator(stop=True, lost=True) and inputs.read(9.0) == Operator(lost=True)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(operators, st.floats(0.0, 0.3)), max_size=12), st.sets(st.integers(0, 11)))
def test_no_press_is_lost_or_repeated(readings: list[tuple[Operator, float]], reads: set[int]) -> None:
    inputs = OperatorInput(None)
    now, made, reported, down = 1.0, 0, 0, False
    for place, (reading, gap) in enumerate(readings):
        now += gap
        inputs.receive(reading, now)
        made, down = made + (reading.reset and not down), reading.reset
        if place in reads:
            operator = inputs.read(now)
            reported += operator.reset
    pending = inputs.read(now)
    reported += pending is not None and pending.reset
    assert reported <= made and (reported > 0) == (made > 0)


def test_input_over_dds(node: Node) -> None:
    inputs, publisher = OperatorInput(node, "panda"), node.publisher(TYPE, joy_topic("panda"), QOS)
    assert node.wait_for(lambda: inputs.devices == 1 and publisher.matched == 2, WAIT)
    publisher.publish(to_joy(FULL))
    heard = inputs.subscriptions[1]
    assert heard.wait(WAIT, after=0)
    received = heard.latest.received  # type: ignore[union-attr]
    end = time.monotonic() + WAIT
    while (operator := inputs.read(received)) is None:  # its callback runs after the sample is stored
        assert time.monotonic() < end
    assert operator == FULL and inputs.read(received + 0.2) == Operator(lost=True)
    publisher.close()
    inputs.close()


# ---- the keyboard ------------------------------------------------------------------------------------------------
def test_held_key_moves_pauses_until_it_repeats_and_releases(keys: Keys) -> None:
    assert keys.read() == RELEASED and keys.read(b"w") == MOVING
    assert keys.read(after=0.19) == MOVING
    assert keys.read(after=0.02) == Operator(held=True)
    assert keys.read(after=0.44) == Operator(held=True)  # 0.65 s: before X11's first repeat
    for _ in range(10):
        assert keys.read(b"w", after=0.04) == MOVING
    assert keys.read(after=0.19).held and keys.read(after=0.02) == RELEASED


def test_axes_shift_and_opposite_keys(keys: Keys) -> None:
    motions = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]
    for key, motion in zip(b"wsadrf", motions, strict=True):
        assert keys.read(bytes([key]), after=1.0).motion == motion
    assert keys.read(b"wsa", after=1.0).motion == (-1.0, 1.0, 0.0)  # the newer of two opposites
    assert keys.read(b"W", after=1.0).motion == (0.25, 0.0, 0.0)


def test_space_toggles_the_gripper_once_per_press(keys: Keys) -> None:
    assert keys.read(b" ") == Operator(True, gripper=-1.0)
    assert keys.read(b" ", after=0.5).gripper == -1.0  # the terminal's repeat
    assert keys.read(b" ", after=0.03).gripper == -1.0 and keys.read(after=1.0) == RELEASED
    assert keys.read(b"w").gripper == 0.0 and keys.read(b" ").gripper == 1.0


def test_h_keeps_control_until_h_or_stop(keys: Keys) -> None:
    keys.read(b"h")
    assert keys.read(after=60.0) == Operator(held=True) and keys.read(b"h") == RELEASED
    assert keys.read(b"h", after=1.0).held and keys.read(b"x") == Operator(stop=True)


def test_press_keys(keys: Keys) -> None:
    presses = (b"y", "success"), (b"n", "failure"), (b"xX", "stop"), (b"\r\n", "reset")
    for key, name in ((key, name) for letters, name in presses for key in letters):
        assert keys.read(bytes([key])) == Operator(**{name: True})  # type: ignore[arg-type]
        assert keys.read(after=1.0) == RELEASED


def test_other_keys_have_no_effect(keys: Keys) -> None:
    arrows, others = (b"\x1b[A", b"\x1b[D", b"\x1bOS", b"\x1b[[A"), (b"\x1b[15~", b"\x1b[1;2D", b"\x1b")
    for sequence in (*arrows, *others, b"\x13\x1a\x1c", "ä€😀".encode()):
        assert keys.read(sequence, after=1.0) == RELEASED
        assert keys.read(b"x", after=1.0).stop


def test_escape_sequence_in_two_parts_and_stop_after_escape(keys: Keys) -> None:
    assert keys.read(b"\x1b[") == RELEASED
    assert keys.read(b"D", after=0.05) == RELEASED
    assert keys.read(b"\x1bx") == Operator(stop=True)
    keys.read(b"\x1b[")
    assert keys.read(b"x", after=0.5).stop


def test_quitting_returns_the_last_input_first(keys: Keys) -> None:
    assert keys.read(b"xq") == Operator(stop=True)
    with pytest.raises(Finished):
        keys.read()


def test_check_shows_what_would_be_commanded_and_ends_with_the_device(keys: Keys) -> None:
    said: list[str] = []
    pressed = iter([b"", b"w", b"", b"x", b"q", b""])  # x is pressed 1 s later

    def wait(seconds: float) -> bool:
        keys.now += 1.0 if (key := next(pressed)) == b"x" else 0.0
        if key:
            os.write(keys.master, key)
            select.select([keys.slave], [], [], WAIT)
        return False

    watch(keys.keyboard, wait, said.append)
    assert "nothing is sent" in said[0]
    assert [line.strip() for line in said[1:]] == [
        "-> no control: nothing", "-> control: motion +1.00 +0.00 +0.00", "-> no control: stop",
    ]  # fmt: skip


def test_terminal_is_restored_after_an_exception_and_earlier_input_dropped(terminal: tuple[int, int]) -> None:
    before = termios.tcgetattr(terminal[1])
    os.write(terminal[0], b"w\n")
    assert select.select([terminal[1]], [], [], WAIT)[0]
    with pytest.raises(ZeroDivisionError), closing(Keyboard(terminal[1])) as keyboard:
        assert termios.tcgetattr(terminal[1]) != before and keyboard.read() == RELEASED
        raise ZeroDivisionError
    assert termios.tcgetattr(terminal[1]) == before


def test_missing_and_closed_terminals_are_refused(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+") as file, pytest.raises(UserError, match="needs a terminal"):
        Keyboard(file.fileno())
    master, slave = pty.openpty()
    with closing(Keyboard(slave)) as keyboard:
        os.close(master)
        with pytest.raises(UserError, match="was closed"):
            keyboard.read()
    os.close(slave)


def test_keys_of_a_terminal_arrive_as_joy_in_the_namespace(session: Any, ear: Ear) -> None:
    session.until("EMERGENCY STOP")
    ear.until(lambda operator: not operator.held)
    session.until("a robot subscribes to /arm/teleop/panda/joy")
    session.type(b"w")
    assert ear.until(lambda operator: operator.held).motion == (1.0, 0.0, 0.0)
    session.until("control: you")
    session.type(b"x")
    assert ear.until(lambda operator: operator.stop).held is False
    session.type(b"hq")
    assert session.end() == 0
    assert ear.last() == RELEASED, "although h keeps control"
    assert termios.tcgetattr(session.slave) == session.before


def test_ctrl_c_releases_control_and_restores_the_terminal(session: Any, ear: Ear) -> None:
    session.until("EMERGENCY STOP")
    assert termios.tcgetattr(session.slave) != session.before
    ear.until(lambda operator: not operator.held)
    session.type(b"w")
    ear.until(lambda operator: operator.held)
    session.type(b"\x03")
    assert session.end() == 0
    assert termios.tcgetattr(session.slave) == session.before and ear.last() == RELEASED


def test_unplugged_gamepad_ends_without_handing_back(pad: Any, ear: Ear) -> None:
    command = [*TELEOP, "gamepad", "--path", pad.path, "--map", pad.map_file, "--ros-args", "-r", "__ns:=/arm"]
    pad.rest()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        ear.until(lambda operator: not operator.held)
        pad.send((1, 4, 1), (2, 1, -32767))
        assert ear.until(lambda operator: operator.held).motion[0] == 1.0
        pad.unplug()
        output = process.communicate(timeout=WAIT)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, "the launcher restarts it"
    assert f"the gamepad {pad.path} is gone" in output and "Traceback" not in output
    assert ear.last().held, "silence means a lost device"


# ---- the loop and the command ------------------------------------------------------------------------------------
class Script:
    """Device that plays readings."""

    def __init__(self, *readings: Operator):
        self.readings = list(readings)

    def read(self) -> Operator:
        if not self.readings:
            raise Finished
        return self.readings.pop(0)

    def close(self) -> None:
        pass


def test_stop_just_before_the_end_is_published(node: Node, ear: Ear) -> None:
    output: list[str] = []
    device = Script(FULL, replace(MOVING, stop=True))
    stream(node, device, "panda", 30.0, lambda _s: signal.SIGTERM, output.append)
    assert ear.until(lambda operator: operator.held) == FULL
    assert ear.until(lambda operator: True) == Operator(stop=True) and "control: you" in output


@pytest.mark.parametrize(
    ("number", "input_", "last"),
    [(signal.SIGTERM, MOVING, RELEASED), (signal.SIGHUP, MOVING, MOVING), (signal.SIGHUP, RELEASED, RELEASED),
     (signal.SIGHUP, Operator(stop=True), Operator(stop=True))],
)  # fmt: skip
def test_closed_terminal_keeps_control(node: Node, ear: Ear, number: int, input_: Operator, last: Operator) -> None:
    stream(node, Script(MOVING if input_.held else RELEASED, input_), "panda", 30.0, lambda _s: number)
    assert ear.last() == last


def test_second_device_on_the_topic_is_reported(node: Node) -> None:
    other = node.publisher(TYPE, joy_topic("panda"), QOS)
    output: list[str] = []

    def warned() -> bool:
        return any(line.startswith("warning: /arm/robot publishes on /arm/teleop/panda/joy too") for line in output)

    with open_node("teleop", "/arm") as mine:
        stream(mine, Script(*[RELEASED] * 300), "panda", 30.0, lambda s: node.wait_for(warned, s), output.append)
    other.close()
    assert warned()


def test_late_readings_are_not_repeated(node: Node) -> None:
    waits: list[float] = []
    stream(node, Script(*[RELEASED] * 5), "panda", 50.0, lambda seconds: bool(waits.append(seconds)))
    assert len(waits) == 5 and all(0.0 <= seconds <= 0.1 for seconds in waits)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP])
def test_signal_ends_the_wait_at_once_and_handlers_are_restored(number: int) -> None:
    outer = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    before = signal.getsignal(number)
    with until_signal() as wait:
        assert not wait(0.0)
        os.kill(os.getpid(), number)
        began = time.monotonic()
        assert wait(60.0) == wait(60.0) == number
        assert time.monotonic() - began < 30.0
    assert signal.getsignal(number) is before
    signal.signal(signal.SIGHUP, outer)


def test_invalid_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownName, match="did you mean keyboard"):
        Teleop("keybord").run()
    with pytest.raises(UserError, match="--rate is 5 Hz; give 20 to 50") as error:
        Teleop("keyboard", rate=5.0).run()
    assert error.value.code == 2
    assert Teleop("none").run() == 0
    assert main(["teleop", "keyboard"]) == 1, "standard input is no terminal"
    assert "needs a terminal" in capsys.readouterr().err


def test_device_reaches_only_its_robot(private_domain: int) -> None:
    with open_node("robots") as node, open_node("person") as person:
        go2, panda = OperatorInput(node, "go2", legged=True), OperatorInput(node, "panda")

        def wait(seconds: float) -> int:
            return signal.SIGTERM if person.wait_for(lambda: panda._newest > 0, seconds) else 0

        stream(person, Script(*[FULL] * 600), "panda", 30.0, wait)
        assert panda._newest and not go2._newest
        assert go2.devices == 0 and go2.read() is None and not go2.other_publishers()


def test_topic_of_any_robot_name() -> None:
    for robot, name in {"go2": "go2", "left-arm.2": "left_arm_2", "3r": "_3r"}.items():
        assert joy_topic(robot) == f"teleop/{name}/joy" and check_name(f"/teleop/{name}/joy")


# ---- other publishers -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reliable", [True, False])
def test_press_from_any_publisher_is_reported_once(private_domain: int, reliable: bool, eventually: Any) -> None:
    with open_node("robot") as robot, open_node("person") as person:
        inputs = OperatorInput(robot, "panda")
        publisher = person.publisher(TYPE, joy_topic("panda"), QoS(depth=10, reliable=reliable))
        assert robot.wait_for(lambda: inputs.devices == 1 and publisher.matched == 1 + reliable, 30)
        assert not robot.incompatible(), "one of the two subscriptions suffices"
        heard = inputs.subscriptions[1]
        for count in range(1, 6):
            publisher.publish(to_joy(Operator(reset=True, stop=count == 1)))
            publisher.publish(to_joy(RELEASED))
            assert heard.wait(30, after=2 * count - 1)
            if reliable:
                assert inputs.subscriptions[0].wait(30, after=2 * count - 1)
            pressed = eventually(lambda: inputs._pressed.copy(), "the press")
            assert "reset" in pressed and ("stop" in pressed) == (count == 1)
            inputs.read()
            again = inputs.read()
            assert again is None or not (again.reset or again.stop)


def xbox(axes: dict[int, float], *buttons: int, count: int = 11, triggers: float = 1.0) -> Any:
    values = [0.0, 0.0, triggers, 0.0, 0.0, triggers, 0.0, 0.0]
    for place, value in axes.items():
        values[place] = value
    return make(TYPE, axes=values, buttons=[int(k in buttons) for k in range(count)])


def test_pad_of_joy_node_equals_our_gamepad() -> None:
    """https://docs.ros.org/en/rolling/p/joy: left and forward are positive; LB is 4, RB 5, A 0, B 1, X 2, Menu 7."""
    assert from_joy(xbox({})) == RELEASED
    moved = from_joy(xbox({1: 0.5, 0: -0.25, 4: 1.0, 3: 0.125}, 4))
    assert moved.held and moved.motion == (0.5, -0.25, 1.0) and moved.rotation == (0.0, 0.0, 0.125)
    legged = from_joy(xbox({1: 0.5, 0: -0.25, 3: 0.125}, 4), legged=True)
    assert legged.motion == (0.5, -0.25, 0.125) and legged.rotation == (0.0, 0.0, 0.0)
    tilted = from_joy(xbox({1: 0.5, 0: -0.25}, 4, 5))
    assert tilted.motion == (0.0, 0.0, 0.0) and tilted.rotation == (0.25, 0.5, 0.0)
    assert from_joy(xbox({5: -1.0}, 4)).gripper == -1.0 and from_joy(xbox({2: -1.0}, 4)).gripper == 1.0
    assert from_joy(xbox({2: 0.0, 5: 0.0}, 4)).gripper == 0.0, "joy_node reports 0 before a trigger was touched"
    pressed = from_joy(xbox({}, 0, 1, 2, 7))
    assert pressed.success and pressed.stop and pressed.failure and pressed.reset and not pressed.held


def test_playstation_pad_of_joy_node_has_other_buttons() -> None:
    """Its triggers are also buttons 6 and 7, of which 7 is Menu on an Xbox pad."""
    assert from_joy(xbox({5: -1.0}, 6, 7, count=13)) == Operator(gripper=-1.0)
    pressed = from_joy(xbox({}, 0, 1, 3, 4, 9, count=13))
    assert pressed.success and pressed.stop and pressed.failure and pressed.held and pressed.reset
    assert not from_joy(xbox({}, 2, count=13)).failure, "triangle"


def game_controller(axes: dict[int, float], *buttons: int) -> Any:
    return make(TYPE, axes=[axes.get(k, 0.0) for k in range(6)], buttons=[int(k in buttons) for k in range(21)])


def test_spacemouse_of_spacenav_node() -> None:
    def cap(axes: list[float], *buttons: int, legged: bool = False) -> Operator:
        return from_joy(make(TYPE, axes=axes, buttons=list(buttons)), legged)

    still = [0.0] * 6
    assert cap(still, 0, 0) == RELEASED
    moved = cap([0.5, -0.25, 0.0, 0.0, 0.0, 1.0], 0, 0)
    assert moved == Operator(True, (0.5, -0.25, 0.0), rotation=(0.0, 0.0, 1.0))
    assert cap([0.5, -0.25, 0.5, 0.5, 0.5, 1.0], 0, 0, legged=True) == Operator(True, (0.5, -0.25, 1.0))
    assert (cap(still, 1, 0).gripper, cap(still, 0, 1).gripper) == (-1.0, 1.0) and cap(still, 1, 0).held
    assert cap([1.0] * 6, 1, 1).stop and not cap([1.0] * 6, 1, 1).held
    assert not cap([math.nan] * 6, 0, 0).held


def test_pad_of_game_controller_node_equals_our_gamepad() -> None:
    """Triggers are 0 at rest and -1 when pulled, since joy inverts all of SDL's axes."""
    assert from_joy(game_controller({4: -1.0}, 9)) == Operator(True, gripper=1.0), "LT opens"
    assert from_joy(game_controller({5: -0.5}, 9)) == Operator(True, gripper=-0.5), "RT closes"
    moved = from_joy(game_controller({1: 0.5, 0: -0.25, 3: 1.0, 2: 0.125}, 9))
    assert moved.motion == (0.5, -0.25, 1.0) and moved.rotation == (0.0, 0.0, 0.125)


@pytest.mark.parametrize(
    ("untouched", "held", "enables"),
    [
        (xbox({}), xbox({1: 1.0}, 4), True),
        (xbox({}, count=13), xbox({1: 1.0}, 4, count=13), True),
        (game_controller({}), game_controller({1: 1.0}, 9), True),
        (xbox({2: 0.0, 5: 0.0, 3: 1.0, 4: 1.0}), xbox({2: 0.0, 5: 0.0, 3: 1.0, 4: 1.0}, 4), False),
        (xbox({}, triggers=0.0), xbox({}, 4, triggers=0.0), False),
        (xbox({}, triggers=-1.0), xbox({}, 4, triggers=-1.0), False),
        (game_controller({3: -1.0}), game_controller({3: -1.0}, 9), False),
        (xbox({0: 0.1}), xbox({0: 0.1}, 4), False),
        (xbox({}), game_controller({1: 1.0}, 9), False),
    ],
    ids=["xbox", "playstation", "sdl", "no driver", "triggers at 0", "triggers at -1", "sdl at an end", "off centre",
         "another pad"],
)  # fmt: skip
def test_joystick_has_no_control_before_it_was_released(untouched: Any, held: Any, enables: bool, caplog: Any) -> None:
    inputs = OperatorInput(None)
    for count, msg in enumerate((untouched, held, held), 1):
        inputs._take(Stamped(bytes(encode(msg, TYPE)), TYPE, count / 100, count, count))
    operator = inputs.read(0.03)
    assert operator is not None and operator.held == enables
    assert caplog.text.count("until its sticks and triggers are released") == (not enables)


def test_unknown_joystick_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    inputs = OperatorInput(None)
    for count in range(1, 4):
        msg = make(TYPE, axes=[0.0] * 3, buttons=[1] * 4)
        inputs._take(Stamped(bytes(encode(msg, TYPE)), TYPE, count / 100, count, count))
    assert inputs.read(0.03) == RELEASED
    assert caplog.text.count("3 axes and 4 buttons") == 1
