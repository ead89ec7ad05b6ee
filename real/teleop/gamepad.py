"""A gamepad as the operator's device, read through Linux's joystick interface (joydev).

Axes and buttons are found by the kernel's codes, so Xbox and PlayStation pads both work; a device without codes is read
as an Xbox pad by cable. The package evdev is not used: it needs a compiler, and /dev/uinput for tests.
"""

from __future__ import annotations

import fcntl
import os
import struct
from array import array
from contextlib import suppress
from glob import glob

from real.teleop.commands import PRESSES, Operator, stick_motion
from robot_rl.util.errors import UserError

DEAD_ZONE = 0.08  # fraction of full deflection: a released stick does not return to exactly 0
_EVENT = struct.Struct("=IhBB")  # js_event: time in ms, value, type, number (linux/joystick.h)
_BUTTON, _AXIS, _INIT = 0x01, 0x02, 0x80
_AXES, _BUTTONS, _AXIS_MAP, _BUTTON_MAP = 0x80016A11, 0x80016A12, 0x80406A32, 0x84006A34  # its ioctls
_READS = 16  # batches of 64 events read at most at a time, in case a device floods us

# Kernel codes (linux/input-event-codes.h) by their use.
_CODES = {"left x": 0x00, "left y": 0x01, "right x": 0x03, "right y": 0x04, "LT": 0x02, "RT": 0x05}
_BLUETOOTH = {  # has GAS and BRAKE
    "left x": 0x00, "left y": 0x01, "right x": 0x02, "right y": 0x05, "LT": 0x0A, "RT": 0x09,
}  # fmt: skip
_KEYS = {"hold": 0x136, "tilt": 0x137, "success": 0x130, "failure": 0x133, "stop": 0x131, "reset": 0x13B}
_CABLE_AXES = (0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x10, 0x11)
_CABLE_BUTTONS = (0x130, 0x131, 0x133, 0x134, 0x136, 0x137, 0x13A, 0x13B, 0x13C, 0x13D, 0x13E)

HELP = """\
LB            hold: you have control; release: the policy continues
left stick    forward / back, left / right
right stick   up / down, turn left / right (where the policy turns the tool)
RB            hold it: the left stick leans the tool instead
RT / LT       close / open the gripper
A             the episode succeeded         Menu   reset
X             the episode failed            B      EMERGENCY STOP
On a PlayStation pad: L1, R1, R2 / L2, cross, triangle, Options, circle. Ctrl-C here ends.
"""
WALK_HELP = """\
LB            hold: you steer; release: back to the previous command source
left stick    forward / back, left / right
right stick   turn left / right
A             the episode succeeded         Menu   reset: it stands up and continues
X             the episode failed            B      EMERGENCY STOP: the robot is damped
On a PlayStation pad: L1, cross, triangle, Options, circle. Ctrl-C here ends.
"""


class Gamepad:
    """The pad at ``path``, or the first at /dev/input/js*.

    A button that is down while the device is opened must be pressed again to count, except the emergency stop.
    """

    def __init__(self, path: str = "", walks: bool = False):
        self.help, self._walks = WALK_HELP if walks else HELP, walks
        self.path = path or next(iter(sorted(glob("/dev/input/js*"))), "")
        if not self.path:
            raise UserError(
                "there is no gamepad at /dev/input/js*: plug one in (and `sudo modprobe joydev`, if it"
                " does not show up), or use the keyboard (teleop:=keyboard)"
            )
        try:
            self._fd: int | None = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except PermissionError as error:
            remedy = "`sudo usermod -aG input $USER`, then log in again"
            raise UserError(f"the gamepad {self.path} may not be read: {remedy}") from error
        except OSError as error:
            found = ", ".join(sorted(glob("/dev/input/js*"))) or "none; plug one in"
            raise UserError(f"the gamepad {self.path} cannot be opened ({error.strerror}); there: {found}") from error
        try:
            self._axes, self._buttons = assign(self.path, *_layout(self._fd))
        except UserError:
            self.close()
            raise
        self._values = dict.fromkeys(_CODES, 0.0)
        self._rested: set[str] = set()  # triggers seen released: until then a 0 may be the driver's default
        self._down: set[str] = set()
        self._pressed: set[str] = set()  # since the last reading: a shorter press counts too
        self._rest = b""

    def read(self) -> Operator:
        """Return the operator's input now; raise UserError if the pad is gone."""
        self._pressed.clear()
        for data in self._chunks():
            whole = len(self._rest + data) // _EVENT.size * _EVENT.size
            events, self._rest = (self._rest + data)[:whole], (self._rest + data)[whole:]
            for _time, value, kind, number in _EVENT.iter_unpack(events):
                self._take(kind, number, value)
        forward, left, up, turn = (_stick(-self._values[name]) for name in ("left y", "left x", "right y", "right x"))
        motion, rotation = (forward, left, turn), (0.0, 0.0, 0.0)
        if not self._walks:
            motion, rotation = stick_motion((forward, left), (up, turn), "tilt" in self._down)
        down = self._down | self._pressed
        gripper = self._trigger("LT") - self._trigger("RT")
        presses = {name: name in down for name in PRESSES}
        return Operator("hold" in self._down, motion, gripper, **presses, rotation=rotation)

    def close(self) -> None:
        """Close the device; calling it again does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _chunks(self) -> list[bytes]:
        chunks: list[bytes] = []
        for _ in range(_READS):
            try:
                data = os.read(self._fd, 64 * _EVENT.size) if self._fd is not None else b""
            except BlockingIOError:
                return chunks
            except OSError:
                data = b""
            if not data and chunks:
                return chunks  # use the last state; the next call raises
            if not data:
                raise UserError(f"the gamepad {self.path} is gone; plug it in and start teleop again")
            chunks.append(data)
        return chunks

    def _take(self, kind: int, number: int, value: int) -> None:
        if kind & ~_INIT == _AXIS and number in self._axes:
            name = self._axes[number]
            self._values[name] = max(value / 32767.0, -1.0)
            if self._values[name] <= -0.5:
                self._rested.add(name)
        elif kind & ~_INIT == _BUTTON and number in self._buttons:
            name = self._buttons[number]
            if not value:
                self._down.discard(name)
            elif not kind & _INIT or name == "stop":
                self._down.add(name)
                self._pressed.add(name)

    def _trigger(self, name: str) -> float:
        """Return how far a trigger is pulled, 0 to 1."""
        pulled = (self._values[name] + 1.0) / 2.0 if name in self._rested else 0.0
        return pulled if pulled >= DEAD_ZONE else 0.0


def _stick(value: float) -> float:
    """Remove the dead zone without a step at its edge."""
    beyond = max(abs(value) - DEAD_ZONE, 0.0) / (1.0 - DEAD_ZONE)
    return beyond if value > 0.0 else -beyond if beyond else 0.0


def _layout(fd: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the kernel's codes of axes and buttons, in the order of their numbers."""
    axes, buttons = bytearray(64), array("H", bytes(1024))
    count = [bytearray(1), bytearray(1)]
    with suppress(OSError):
        fcntl.ioctl(fd, _AXES, count[0])
        fcntl.ioctl(fd, _BUTTONS, count[1])
        fcntl.ioctl(fd, _AXIS_MAP, axes)
        fcntl.ioctl(fd, _BUTTON_MAP, buttons)
        return tuple(axes[: count[0][0]]), tuple(buttons[: count[1][0]])
    return _CABLE_AXES, _CABLE_BUTTONS


def assign(path: str, axes: tuple[int, ...], buttons: tuple[int, ...]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the use of each axis and button number, found by the kernel's codes."""
    wanted = _BLUETOOTH if {0x09, 0x0A} <= set(axes) else _CODES
    missing = [name for name, code in wanted.items() if code not in axes]
    missing += [name for name, code in _KEYS.items() if code not in buttons]
    if missing:
        raise UserError(f"{path} is not an Xbox or PlayStation gamepad: it lacks {', '.join(missing)}")
    return (
        {axes.index(code): name for name, code in wanted.items()},
        {buttons.index(code): name for name, code in _KEYS.items()},
    )
