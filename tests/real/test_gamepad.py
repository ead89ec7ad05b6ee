"""Gamepads: layouts by identity or map file, refusal unless released, readings. The device file is a fifo."""

import os
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real.launching.launch import require_device
from real.launching.node import LaunchError
from real.teleop import RELEASED, Gamepad, Operator
from real.teleop import joystick as joysticks
from real.teleop.check import check
from real.teleop.joystick import Identity, Joystick, identify
from real.teleop.layout import MAP_FILE, known_layout, mapped_layout
from robot_rl.cli.teleop import Teleop
from robot_rl.util.errors import UserError

BUTTON, AXIS, INIT = 1, 2, 0x80
A, B, X, LB, MENU = 0, 1, 2, 4, 7
HATS = (0x10, 0x11)
DRIVER_AXES = (0, 1, 2, 3, 4, 5, *HATS)
XPAD = (0x130, 0x131, 0x133, 0x134, 0x136, 0x137, 0x13A, 0x13B, 0x13C, 0x13D, 0x13E)
SPECIFIED = (0x130, 0x131, 0x133, 0x134, 0x136, 0x137, 0x138, 0x139, *range(0x13A, 0x13F))
PLAIN = tuple(range(0x130, 0x13E))
XBOX_360 = Identity("Microsoft X-Box 360 pad", 3, 0x45E, 0x28E, 0x110, "xpad", DRIVER_AXES, XPAD)
F710 = Identity("Logitech Gamepad F710", 3, 0x46D, 0xC21F, 0x305, "xpad", DRIVER_AXES, XPAD)
STEAM = Identity("Microsoft X-Box 360 pad 0", 3, 0x28DE, 0x11FF, 1, "", DRIVER_AXES, XPAD)
XPADNEO = Identity("Xbox Wireless Controller", 5, 0x45E, 0x28E, 0x1130, "xpadneo", DRIVER_AXES, XPAD)
GENERIC = "hid-generic", (0, 1, 2, 5, 9, 10, *HATS), tuple(range(0x130, 0x13F))
BLUETOOTH = Identity("Xbox Wireless Controller", 5, 0x45E, 0xB13, 0x511, *GENERIC)
DUALSENSE = Identity("DualSense", 3, 0x54C, 0xCE6, 0x8111, "playstation", DRIVER_AXES, SPECIFIED)
PS4 = Identity("Sony Wireless Controller", 3, 0x54C, 0x5C4, 0x111, "hid-generic", DRIVER_AXES, PLAIN)
SWITCH = Identity("Pro Controller", 5, 0x57E, 0x2009, 0x8001, "nintendo", (0, 1, 3, 4, *HATS), SPECIFIED)
FEATURES = ("leftx", "lefty", "rightx", "righty", "lefttrigger", "righttrigger",
            "leftshoulder", "rightshoulder", "a", "b", "x", "start")  # fmt: skip


def opened(pad: Any, **options: Any) -> Any:
    """Open the fifo's gamepad with its map file and released sticks."""
    pad.rest()
    return closing(Gamepad(pad.path, map_file=pad.map_file, **{"settle": 0.0} | options))


# ---- layouts -----------------------------------------------------------------------------------------------------
def test_known_pads() -> None:
    """Numbers of SDL's community database."""
    for identity, numbers in (
        *((pad, (0, 1, 3, 4, 2, 5, 4, 5, 0, 1, 2, 7)) for pad in (XBOX_360, F710, STEAM, XPADNEO)),
        (BLUETOOTH, (0, 1, 2, 3, 5, 4, 6, 7, 0, 1, 3, 11)),
        (DUALSENSE, (0, 1, 3, 4, 2, 5, 4, 5, 0, 1, 3, 9)),
        (PS4, (0, 1, 2, 5, 3, 4, 4, 5, 1, 2, 0, 9)),
    ):
        found = {name: source.number for name, source in known_layout(identity).items()}
        assert found == dict(zip(FEATURES, numbers, strict=True)), identity


def test_other_devices_with_the_same_codes_are_unknown() -> None:
    unidentified, clone = Identity(axes=DRIVER_AXES, buttons=XPAD), replace(PS4, vendor=0x2563, product=0x575)
    other_drivers = replace(PS4, driver="sony"), replace(XBOX_360, driver="hid-generic")
    for identity in (unidentified, clone, *other_drivers, replace(XBOX_360, buttons=XPAD[:4]), SWITCH):
        assert known_layout(identity) == {}, identity


def test_unknown_pad_is_refused(pad: Any) -> None:
    pad.rest()
    with pytest.raises(UserError, match=rf"(?s){pad.path}.*057e:2009.*--map.*{SWITCH.guid}") as error:
        Gamepad(pad.path, identify=lambda _fd: SWITCH)
    assert error.value.code == 2, "no restart"


def test_identity_from_sysfs(pad: Any, tmp_path: Path) -> None:
    folder = tmp_path / "dev/char/0:0/device"
    (folder / "id").mkdir(parents=True)
    (tmp_path / "drivers/hid-generic").mkdir(parents=True)
    (folder / "device").mkdir()
    (folder / "device/driver").symlink_to(tmp_path / "drivers/hid-generic")
    (folder / "name").write_text("Sony Wireless Controller\n")
    for key, value in {"bustype": "0003", "vendor": "054c", "product": "05c4", "version": "0111"}.items():
        (folder / "id" / key).write_text(value + "\n")
    found = identify(pad.wire, tmp_path)
    assert found == replace(PS4, axes=(), buttons=())
    assert found.guid == "030000004c050000c405000011010000", "SDL's GUID"
    assert identify(pad.wire) == Identity(), "of a fifo"


# ---- map files ---------------------------------------------------------------------------------------------------
def test_map_files_use_sdls_numbers(pad: Any) -> None:
    """SDL does not count hats, and counts joystick buttons before others."""
    odd = replace(SWITCH, axes=(0x12, 0, 0x10, 1, 0x20, 5, 0x21), buttons=(0x101, *range(0x130, 0x137)))
    pad.map("leftx:a0,lefty:a1~,rightx:a2,righty:a3,lefttrigger:-a4,righttrigger:b2,"
            "leftshoulder:b7,rightshoulder:b3,a:b0,b:b1,x:b4,start:b5", odd.guid.upper())  # fmt: skip
    layout = mapped_layout(odd, pad.map_file)
    assert [layout[name].number for name in FEATURES[:4]] == [1, 3, 5, 4]
    assert layout["lefty"].position(-32767, False) == 1.0
    assert layout["lefttrigger"].position(-16384, True) == pytest.approx(0.5, abs=1e-3)
    assert layout["lefttrigger"].position(16384, True) == 0.0
    assert layout["righttrigger"].position(1, True) == 1.0
    assert (layout["a"].number, layout["leftshoulder"].number) == (1, 0)
    assert mapped_layout(PS4, pad.map_file) == {}, "another device's line"


@pytest.mark.parametrize("wrong", ["lefty:a1", "a:b0", "leftx:b0", "start:h0.1", "b:a5", "b:b7"])
def test_invalid_map_lines_are_refused(pad: Any, wrong: str) -> None:
    named = wrong.split(":")[0]
    kept = [pair for pair in pad.XBOX.split(",") if not pair.startswith(f"{named}:")]
    given = [] if wrong in pad.XBOX.split(",") else [wrong]
    pad.map(",".join([*kept, *given]))
    with pytest.raises(UserError, match=f"{pad.map_file}.* {named} (and start )?to ") as error:
        opened(pad)
    assert error.value.code == 2


@settings(deadline=None, max_examples=40)
@given(text=st.text(max_size=60) | st.text("0,:abx~+-\n", max_size=60).map(lambda text: "0" * 32 + "," + text))
def test_any_map_file_is_loaded_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "map"
    file.write_text(text, "utf-8", errors="surrogatepass")
    try:
        assert set(mapped_layout(Identity(), str(file))) in (set(), set(FEATURES))
    except UserError as error:
        assert str(file) in str(error)


def test_map_file_of_the_environment(pad: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joysticks, "glob", lambda pattern: [pad.path])
    pad.rest()
    with pytest.raises(LaunchError, match="no known kind"):
        require_device({"teleop": "gamepad"})
    monkeypatch.setenv(MAP_FILE, pad.map_file)
    pad.rest()
    require_device({"teleop": "gamepad"})
    monkeypatch.setenv(MAP_FILE, "/nowhere")
    with pytest.raises(LaunchError, match="/nowhere"):
        require_device({"teleop": "gamepad"})


# ---- at rest -----------------------------------------------------------------------------------------------------
def test_released_playstation_pad_without_its_driver_gives_no_motion(pad: Any) -> None:
    pad.rest(3, 4)
    with closing(Gamepad(pad.path, settle=0.0, identify=lambda _fd: PS4)) as gamepad:
        assert gamepad.read() == RELEASED
        pad.send((BUTTON, 6, 1), (BUTTON, 7, 1))
        assert not gamepad.read().held, "L2 and R2"
        pad.send((BUTTON, 4, 1))
        assert gamepad.read() == Operator(held=True)
        pad.send((AXIS, 5, -32767), (AXIS, 4, 32767))
        assert gamepad.read() == Operator(True, (0.0, 0.0, 1.0), -1.0)
        pad.send((BUTTON, 2, 1))
        assert gamepad.read().stop, "circle"


OFF_REST = [(3, -32767, "rightx"), (0, 3300, "leftx"), (2, 0, "lefttrigger"), (5, 32767, "right")]


@pytest.mark.parametrize(("axis", "value", "name"), OFF_REST)
def test_untouched_axis_off_its_rest_position_is_refused(pad: Any, axis: int, value: int, name: str) -> None:
    pad.rest()
    pad.send((AXIS | INIT, axis, value))
    with pytest.raises(UserError, match=rf"axis {axis} \({name}.*--map"):
        Gamepad(pad.path, map_file=pad.map_file, settle=0.0)


def test_late_reports_are_awaited(pad: Any) -> None:
    """Before the first movement the kernel may report 0, which may be an end of the axis."""
    pad.send(*((AXIS | INIT, k, -32767) for k in range(6)))
    threading.Timer(0.05, pad.rest).start()
    with closing(Gamepad(pad.path, map_file=pad.map_file, settle=30.0)) as gamepad:
        assert gamepad.read() == RELEASED


# ---- readings ----------------------------------------------------------------------------------------------------
def test_sticks_triggers_and_buttons(pad: Any) -> None:
    with opened(pad) as gamepad:
        assert gamepad.read() == RELEASED
        pad.send((BUTTON, LB, 1), (AXIS, 1, -32767), (AXIS, 0, -32767), (AXIS, 4, 32767))
        assert gamepad.read() == Operator(True, (1.0, 1.0, -1.0))
        pad.send((AXIS, 1, 2600), (AXIS, 0, -32768), (AXIS, 4, -17694))
        assert gamepad.read().motion == pytest.approx((0.0, 1.0, 0.5), abs=1e-3)
        pad.send((AXIS, 5, 32767))
        assert gamepad.read().gripper == -1.0
        pad.send((AXIS, 5, -32767), (AXIS, 2, 0))
        assert gamepad.read().gripper == pytest.approx(0.5)
        pad.send((BUTTON, LB, 0), (BUTTON, 9, 1), (AXIS, 6, 32767), (7, 0, 1))
        assert not gamepad.read().held


@pytest.mark.parametrize(("button", "name"), [(A, "success"), (X, "failure"), (B, "stop"), (MENU, "reset")])
def test_press_between_two_readings_counts_once(pad: Any, button: int, name: str) -> None:
    pad.rest()
    pad.send((BUTTON, button, 1), (BUTTON, button, 0))
    with opened(pad) as gamepad:
        assert gamepad.read() == Operator(**{name: True}), "while it was opened"
        pad.send((BUTTON, button, 1), (BUTTON, button, 0))
        assert gamepad.read() == Operator(**{name: True}) and gamepad.read() == RELEASED


def test_only_the_stop_counts_if_down_at_opening(pad: Any) -> None:
    pad.send((BUTTON | INIT, LB, 1), (BUTTON | INIT, A, 1), (BUTTON | INIT, B, 1))
    with opened(pad) as gamepad:
        assert gamepad.read() == Operator(stop=True)
        pad.send((BUTTON, LB, 0), (BUTTON, LB, 1))
        assert gamepad.read().held
        pad.send((BUTTON | INIT, LB, 1))  # the kernel repeats the state after a queue overflow
        assert gamepad.read().held
        pad.send((BUTTON | INIT, LB, 0))
        assert not gamepad.read().held


@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_input_within_bounds(tmp_path_factory: Any, pad_in: Callable[[Path], Any], data: bytes) -> None:
    pad = pad_in(tmp_path_factory.mktemp("pad"))
    with opened(pad) as gamepad:
        pad.write(data)
        for operator in (gamepad.read(), gamepad.read()):
            assert all(-1.0 <= value <= 1.0 for value in (*operator.motion, operator.gripper))
        pad.unplug()
        with pytest.raises(UserError, match="is gone"):
            gamepad.read()


def test_event_in_two_parts(pad: Any) -> None:
    whole = struct.pack("=IhBB", 0, 1, BUTTON, LB)
    with opened(pad) as gamepad:
        pad.write(whole[:3])
        assert not gamepad.read().held
        pad.write(whole[3:])
        assert gamepad.read().held


def test_missing_and_unreadable_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joysticks, "glob", lambda pattern: [])
    with pytest.raises(UserError, match="plug one in"):
        Gamepad()
    with pytest.raises(UserError, match="js7 cannot be opened"):
        Gamepad(str(tmp_path / "js7"))

    monkeypatch.setattr(os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(UserError, match="usermod -aG input"):
        Gamepad("/dev/input/js0")


# ---- robot-rl teleop gamepad --check -----------------------------------------------------------------------------
@pytest.fixture
def checked(pad: Any) -> Callable[..., list[str]]:
    """Run the check with one of `moves` per period; return the output after each."""

    def run(moves: list[Any], identity: Any = None, file: str = "") -> list[str]:
        output: list[str] = []

        def wait(_seconds: float) -> bool:
            if not moves:
                return True
            output.append("---")
            pad.send(*moves.pop(0))
            return False

        with closing(Joystick(pad.path, lambda _fd: identity or Identity())) as device:
            check(device, False, file, wait, output.append)
        return "\n".join(output).split("---")

    return run


REST = [(AXIS | INIT, k, -32767 if k in (2, 5) else 0) for k in range(6)]


def test_check_shows_controls_and_commands(pad: Any, checked: Any) -> None:
    moves = [REST, [(AXIS, 1, -32767)], [(BUTTON, LB, 1)], [(BUTTON, 9, 1)], [(BUTTON, B, 1)], [(AXIS, 1, -32700)]]
    head, rest, stick, hold, other, stop, still = checked(moves, file=pad.map_file)
    assert pad.path in head and "0" * 32 in head
    assert "axis 1: +0.00" in rest and "no control" in rest
    assert "axis 1: -1.00  lefty" in stick and "motion +1.00 +0.00 +0.00" in stick
    assert "hold" in hold and "-> control" in hold
    assert "button 9" in other and "not used" in other and "->" not in other
    assert "stop" in stop
    assert not still.strip(), "too small a movement"


def test_check_shows_a_pad_that_would_be_refused(pad: Any, checked: Any) -> None:
    wrong = [(kind, k, -32767 if k == 3 else value) for kind, k, value in REST]
    _, output = checked([wrong], file=pad.map_file)
    assert "refused" in output and "axis 3 (rightx)" in output
    head, output = checked([[(BUTTON, 6, 1)]], SWITCH)
    assert "no known kind" in head and "button 6: +1.00  not used" in output and "->" not in output


def test_check_makes_a_usable_map(pad: Any, checked: Any, tmp_path: Path) -> None:
    """Triggers are axes 3 (reversed) and 4 (half); the first is also a button."""
    file, still = str(tmp_path / "new.txt"), [(AXIS | INIT, k, 32767 if k == 3 else 0) for k in range(6)]
    moves: list[list[tuple[int, int, int]]] = [still] * 80
    for axis in (0, 1, 2, 5):
        moves += [[(AXIS, axis, 32767)], [(AXIS, axis, 500)]]
    moves += [[(BUTTON, 6, 1)], [(AXIS, 3, -32767)], [(BUTTON, 6, 0)], [(AXIS, 3, 32767)]]
    moves += [[(AXIS, 4, -32767)], [(AXIS, 4, 0)]]
    for button in (4, 4, 5, 1, 0, 2, 9):  # the second repeats the first
        moves += [[(BUTTON, button, 1), (BUTTON, button, 0)]]
    output = "".join(checked(moves, file=file))
    assert "leftshoulder already" in output and "--map" in output
    pad.send(*still)
    with closing(Gamepad(pad.path, map_file=file, settle=0.0)) as gamepad:
        pad.send((BUTTON, 4, 1), (AXIS, 3, 0), (AXIS, 2, -32767), (BUTTON, 2, 1))
        assert gamepad.read() == Operator(True, gripper=0.5, rotation=(0.0, 0.0, 1.0), stop=True)


def test_check_opens_no_node(pad: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("real.bus.open_node", lambda *_a, **_k: pytest.fail("a node was opened"))
    pad.unplug()
    with pytest.raises(UserError, match="is gone"):
        Teleop("gamepad", path=pad.path, map=pad.map_file, check=True).run()
    assert "nothing is sent" in capsys.readouterr().out


@pytest.mark.parametrize(
    "device, options, message",
    [("keyboard", {"map": "pads.txt"}, "for a gamepad, not for keyboard"), ("scripted", {"check": True}, "a person")],
)
def test_options_of_other_devices_are_refused(device: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Teleop(device, **options).run()
    assert error.value.code == 2
