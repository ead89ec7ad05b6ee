"""A SpaceMouse: the daemon spacenavd reads a simulated device, and our teleop is its client."""

import os
import pty
import select
import shutil
import socket
import struct
import subprocess
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from real.teleop.commands import Operator
from real.teleop.devices import WithKeys, open_device
from real.teleop.spacemouse import EVENT, FULL, LINGER, SILENT, SpaceMouse, connect
from robot_rl.util.errors import UserError

WAIT = 20.0
DAEMON = shutil.which("spacenavd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


class Daemon:
    """The daemon's end of a connection, and a mouse at the other end, at a clock that the test sets."""

    def __init__(self, legged: bool = False):
        self.now, (ours, self.client) = 100.0, socket.socketpair()
        self.mouse = SpaceMouse(ours, legged, lambda: self.now)

    def move(self, *axes: float) -> Operator:
        """Send deflections of up to 1 and return the reading."""
        return self.send(EVENT.pack(0, *(round(FULL * value) for value in axes), 8))

    def button(self, number: int, down: bool) -> Operator:
        return self.send(EVENT.pack(1 if down else 2, number, 0, 0, 0, 0, 0, 0))

    def send(self, data: bytes) -> Operator:
        self.client.sendall(data)
        return self.mouse.read()

    def close(self) -> None:
        self.mouse.close()
        self.client.close()


@pytest.fixture
def daemon() -> Iterator[Callable[..., Daemon]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(closing(Daemon(**options)))


def test_cap_moves_and_turns_along_the_base_axes(daemon: Callable[..., Daemon]) -> None:
    """The daemon's x is right, y up, z forward; ours x forward, y left, z up."""
    d = daemon()
    assert d.move(0, 0, 1, 0, 0, 0).motion == (1, 0, 0) and d.move(1, 0, 0, 0, 0, 0).motion == (0, -1, 0)
    assert d.move(0, 1, 0, 0, 0, 0).motion == (0, 0, 1)
    assert d.move(0, 0, 0, 0, 0, 1).rotation == (1, 0, 0) and d.move(0, 0, 0, 1, 0, 0).rotation == (0, -1, 0)
    assert d.move(0, 0, 0, 0, 1, 0).rotation == (0, 0, 1)
    walker = daemon(legged=True).move(0.5, 0.9, -1, 0, 0.25, 0)
    assert walker.motion == pytest.approx((-1, -0.5, 0.25), abs=0.01) and walker.rotation == (0, 0, 0)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8), st.integers(1, 31))
def test_any_event_in_any_pieces_stays_within_limits(values: list[int], cut: int) -> None:
    """Pieces are joined, and unknown kinds of events are ignored."""
    with closing(Daemon()) as d:
        data = struct.pack("=8i", *values)
        assert d.send(data[:cut]) == Operator()
        read = d.send(data[cut:])
        assert all(-1 <= value <= 1 for value in (*read.motion, *read.rotation))


def test_control_lasts_while_the_cap_is_touched(daemon: Callable[..., Daemon]) -> None:
    d = daemon()
    assert not d.mouse.read().held
    assert not d.move(0.05, 0, 0, 0, 0, 0).held, "a table that shakes"
    assert d.move(0.5, 0, 0, 0, 0, 0).held
    assert d.move(0, 0, 0, 0, 0, 0).held, "a reversal passes the centre"
    d.now += LINGER + 0.01
    assert not d.mouse.read().held


def test_silent_cap_counts_as_released(daemon: Callable[..., Daemon]) -> None:
    """A device that was unplugged while deflected must not go on moving the robot."""
    d = daemon()
    d.move(1, 0, 0, 0, 0, 0)
    d.now += SILENT - 0.01
    assert d.mouse.read().motion == (0, -1, 0)
    d.now += 0.02
    assert d.mouse.read().motion == (0, 0, 0)
    d.now += LINGER
    assert not d.mouse.read().held


def test_buttons(daemon: Callable[..., Daemon]) -> None:
    d = daemon()
    assert d.button(0, True).gripper == -1 and d.button(0, False).gripper == -1
    assert d.button(0, True).gripper == 1
    d.button(0, False)
    d.now += LINGER + 0.01
    released = d.mouse.read()
    assert not released.held and released.gripper == 0, "the next takeover keeps the policy's width"
    assert d.button(1, True).held
    d.button(1, False)
    d.now += 60
    assert d.mouse.read().held, "kept without touching"
    d.button(1, True)
    d.button(1, False)
    d.now += LINGER + 0.01
    assert not d.mouse.read().held
    d.button(1, True)
    both = d.button(0, True)
    assert both.stop and not both.held
    assert d.mouse.read().stop, "a level while both are down"
    d.button(0, False)
    assert not d.mouse.read().stop


def test_short_stop_between_two_readings_arrives(daemon: Callable[..., Daemon]) -> None:
    d = daemon()
    taps = [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert d.send(b"".join(EVENT.pack(kind, number, 0, 0, 0, 0, 0, 0) for kind, number in taps)).stop


def test_daemon_that_ends_is_an_error(daemon: Callable[..., Daemon]) -> None:
    d = daemon()
    d.move(1, 0, 0, 0, 0, 0)
    d.client.close()
    with pytest.raises(UserError, match="has ended"):
        d.mouse.read()


def test_missing_daemon_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPNAV_SOCKET", str(tmp_path / "none"))
    with pytest.raises(UserError, match="apt install spacenavd"):
        open_device("spacemouse")


def test_marks_are_keys_of_the_terminal(daemon: Callable[..., Daemon]) -> None:
    keys = Operator(True, (1.0, 0.0, 0.0), success=True)
    pair = WithKeys(daemon().mouse, SimpleNamespace(read=lambda: keys, close=lambda: None))  # type: ignore[arg-type]
    assert pair.read() == Operator(success=True), "its motion keys move nothing"
    assert "reset" in pair.help


@pytest.fixture
def ball(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """Start spacenavd with a simulated serial Spaceball; yield the device's end, and the daemon's socket."""
    assert DAEMON
    device, line = pty.openpty()
    tty.setraw(line)
    (tmp_path / "run").mkdir()
    config, path = tmp_path / "spnavrc", tmp_path / "run" / "spnav.sock"
    config.write_text(f"serial = {os.ttyname(line)}\n")
    # Debian's daemon has the path run/spnav.sock, relative to where it runs.
    process = subprocess.Popen([DAEMON, "-d", "-c", config], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=-2)
    try:
        asked = b""
        while b"@RESET" not in asked:
            assert select.select([device], [], [], WAIT)[0], "the daemon does not ask for a device"
            asked += os.read(device, 64)
        os.write(device, b"\r@1 Spaceball alive and well after a poweron reset.\r@2 Firmware version 2.43\r")
        end = time.monotonic() + WAIT
        while not path.exists() and process.poll() is None and time.monotonic() < end:
            select.select([], [], [], 0.01)
        yield device, str(path)
    finally:
        process.terminate()
        process.wait(WAIT)
        os.close(device)
        os.close(line)


def displacement(*axes: int) -> bytes:
    """Return a Spaceball's packet of displacements; bytes that steer the line are escaped."""
    raw = b"\0\0" + struct.pack(">6h", *axes)
    escaped = {0x11: b"^Q", 0x13: b"^S", 0x0D: b"^M", ord("^"): b"^^"}
    return b"D" + b"".join(escaped.get(byte, bytes([byte])) for byte in raw) + b"\r"


@pytest.mark.skipif(DAEMON is None, reason="apt-get install spacenavd")
def test_spacenavd_tells_us_of_its_device(ball: tuple[int, str]) -> None:
    device, path = ball
    with closing(SpaceMouse(connect(path))) as mouse:

        def until(fits: Callable[[Operator], bool], packet: bytes) -> Operator:
            """Send a packet; return the first reading that fits."""
            end = time.monotonic() + WAIT
            os.write(device, packet)
            while time.monotonic() < end:
                if fits(read := mouse.read()):
                    return read
                select.select([mouse.connection], [], [], WAIT)
            raise AssertionError("nothing arrived")

        moved = until(lambda o: o.held, displacement(175, 0, 0, 0, 0, 0))
        assert moved.motion == pytest.approx((0, -0.5, 0), abs=0.01), "its x is right"
        turned = until(lambda o: any(o.rotation), displacement(0, 0, 0, 350, 0, 0))
        assert turned.motion == (0, 0, 0) and turned.rotation == pytest.approx((0, -1, 0), abs=0.01)
        assert until(lambda o: o.gripper < 0, b"K\x00\x01\r").held
        assert until(lambda o: o.stop, b"K\x00\x03\r").stop
