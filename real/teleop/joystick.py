"""Joystick device file (Linux joydev): identity and events.

The package evdev is not used: it has no wheels, so it would need a compiler on the robot's computer, and tests with it
would need /dev/uinput.
"""

import fcntl
import os
import select
import struct
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from robot_rl.util.errors import UserError

BUTTON, AXIS, INITIAL = 0x01, 0x02, 0x80
"""Kinds of events. The additional bit `INITIAL` marks an event that reports the state at opening."""
FULL = 32767
_EVENT = struct.Struct("=IhBB")  # js_event: time in ms, value, type, number (linux/joystick.h)
_AXES, _BUTTONS, _AXIS_MAP, _BUTTON_MAP = 0x80016A11, 0x80016A12, 0x80406A32, 0x84006A34  # joydev's ioctls
_READS = 16  # batches of 64 events that one call reads at most
_HATS, _FIRST_BUTTON = range(0x10, 0x18), 0x120


@dataclass(frozen=True)
class Identity:
    """Device identity from the kernel; unknown texts are empty, unknown numbers 0."""

    name: str = ""
    bus: int = 0
    vendor: int = 0
    product: int = 0
    version: int = 0
    driver: str = ""
    axes: tuple[int, ...] = ()
    """Kernel code (linux/input-event-codes.h) of each axis; the index is the axis's number in events."""
    buttons: tuple[int, ...] = ()
    """Kernel code of each button; the index is the button's number in events."""

    @property
    def ids(self) -> str:
        """Return the ids vendor:product in lsusb's notation."""
        return f"{self.vendor:04x}:{self.product:04x}"

    @property
    def guid(self) -> str:
        """Return the device's GUID as in SDL's gamecontrollerdb.txt, without the checksum of its name."""
        return struct.pack("<8H", self.bus, 0, self.vendor, 0, self.product, 0, self.version, 0).hex()

    def sdl_order(self, kind: int) -> list[int]:
        """Return the event numbers of axes or buttons (`kind`) in SDL's order. Axes are sorted by code, without hats;
        buttons by code, with the joystick and gamepad codes first."""
        codes = self.axes if kind == AXIS else self.buttons
        order = sorted(range(len(codes)), key=lambda k: (codes[k] < _FIRST_BUTTON, codes[k]))
        return [k for k in order if kind == BUTTON or codes[k] not in _HATS]

    def __str__(self) -> str:
        return f"{self.name or 'a device without a name'} ({self.ids}, driver {self.driver or 'unknown'})"


def identify(fd: int, sysfs: Path = Path("/sys")) -> Identity:
    """Return the identity of the open device with file descriptor `fd`."""
    device = os.fstat(fd).st_rdev
    folder = sysfs / f"dev/char/{os.major(device)}:{os.minor(device)}/device"
    name, ids, driver = "", [0] * 4, folder / "device" / "driver"
    with suppress(OSError, ValueError):
        name = (folder / "name").read_text().strip()
        ids = [int((folder / "id" / key).read_text(), 16) for key in ("bustype", "vendor", "product", "version")]
    bus, vendor, product, version = ids
    axes, buttons = _codes(fd)
    known = driver.resolve().name if driver.exists() else ""
    return Identity(name, bus, vendor, product, version, known, axes, buttons)


def _codes(fd: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the kernel codes of a device's axes and of its buttons, each indexed by event number."""
    axes, buttons = bytearray(64), array("H", bytes(1024))
    count = [bytearray(1), bytearray(1)]
    with suppress(OSError):
        fcntl.ioctl(fd, _AXES, count[0])
        fcntl.ioctl(fd, _BUTTONS, count[1])
        fcntl.ioctl(fd, _AXIS_MAP, axes)
        fcntl.ioctl(fd, _BUTTON_MAP, buttons)
        return tuple(axes[: count[0][0]]), tuple(buttons[: count[1][0]])
    return (), ()


class Joystick:
    """Joystick device at ``path`` or the first /dev/input/js*."""

    def __init__(self, path: str = "", identify: Callable[[int], Identity] = identify):
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
            present = ", ".join(sorted(glob("/dev/input/js*"))) or "none; plug one in"
            raise UserError(f"the gamepad {self.path} cannot be opened ({error.strerror}); there: {present}") from error
        self.identity = identify(self._fd)
        self._rest = b""

    def __str__(self) -> str:
        return f"the gamepad {self.path}, {self.identity}"

    def events(self) -> Iterator[tuple[int, int, int]]:
        """Yield kind, number and value of pending events; raise UserError if the device is gone."""
        for data in self._chunks():
            whole = len(self._rest + data) // _EVENT.size * _EVENT.size
            events, self._rest = (self._rest + data)[:whole], (self._rest + data)[whole:]
            for _time, value, kind, number in _EVENT.iter_unpack(events):
                yield kind, number, value

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for events."""
        if self._fd is not None:
            select.select([self._fd], [], [], seconds)

    def close(self) -> None:
        """Close the device. Idempotent."""
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
                return chunks  # the next call raises
            if not data:
                raise UserError(f"the gamepad {self.path} is gone; plug it in and start teleop again")
            chunks.append(data)
        return chunks
