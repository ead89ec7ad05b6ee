"""SpaceMouse as a teleop device, through the daemon spacenavd, which needs no permission for the device itself.

The daemon writes eight int32 for each event to its clients (its protocol 0)::

    0, x, y, z, rx, ry, rz, ms since the event before      x right, y up, z forward; about 350 at full deflection
    1 or 2, button, ...                                    pressed or released

It tells changes only, so a cap that rests at its stop is silent. A hand that holds it trembles.
"""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from real.teleop.commands import Operator
from robot_rl.util.errors import UserError

SOCKET = "SPNAV_SOCKET"
"""Environment variable for the daemon's socket, as in libspnav."""
SOCKETS = ("/run/spnav.sock", "/var/run/spnav.sock")
EVENT = struct.Struct("=8i")
MOTION, PRESS, RELEASE = 0, 1, 2
FULL = 350.0
"""Deflection that counts as full."""
TOUCHED = 0.08
"""Deflection of any axis, as a fraction of the full one, from which on the cap counts as touched."""
LINGER = 0.3
"""Time for which the operator keeps control after the cap has returned, s: a reversal passes the centre."""
SILENT = 0.5
"""Time without an event after which a deflected cap counts as released, s: its cable or radio link may be gone."""
GRIPPER, KEEP = 0, 1
"""Numbers of the left and the right button. Both at once are the emergency stop."""

HELP = """\
push, pull, turn, tilt the cap   move and turn the tool; you have control while the cap is touched
left button                      close / open the gripper
right button                     keep control without touching, until pressed again
both buttons                     EMERGENCY STOP
"""
WALK_HELP = """\
push, pull, turn the cap   forward / back, left / right, turn; you steer while the cap is touched
right button               keep control without touching, until pressed again
both buttons               EMERGENCY STOP: the robot is damped
"""


def connect(path: str = "") -> socket.socket:
    """Return a connection to the daemon at `path`; "": the variable SPNAV_SOCKET, or its usual places. UserError if
    there is none."""
    path = path or os.environ.get(SOCKET) or next((p for p in SOCKETS if Path(p).exists()), SOCKETS[0])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise UserError(
            f"no spacenavd at {path} ({error.strerror}), which reads a SpaceMouse: sudo apt install spacenavd"
        ) from None
    return connection


class SpaceMouse:
    """SpaceMouse at the other end of a connection to spacenavd. Its two buttons leave no room for marks and reset: see
    `WithKeys`."""

    def __init__(
        self, connection: socket.socket, legged: bool = False, clock: Callable[[], float] = time.monotonic
    ):
        self.help, self._legged, self._clock = WALK_HELP if legged else HELP, legged, clock
        self.connection = connection
        connection.setblocking(False)
        self._bytes = b""
        self._cap: tuple[float, ...] = (0.0,) * 6
        self._moved = self._touched = -float("inf")  # times of the last motion event, and of the last touch
        self._down: set[int] = set()
        self._keeps, self._close_next, self._gripper, self._stop = False, True, 0.0, False

    def read(self) -> Operator:
        """Return the operator's input; UserError if the daemon has ended."""
        for kind, *values in self._events():
            if kind == MOTION:
                self._cap = tuple(min(max(value / FULL, -1.0), 1.0) for value in values[:6])
                self._moved = self._clock()
            elif kind in (PRESS, RELEASE):
                self._button(values[0], kind == PRESS)
        now = self._clock()
        cap = self._cap if now < self._moved + SILENT else (0.0,) * 6
        if max(map(abs, cap)) > TOUCHED:
            self._touched = now
        held = self._keeps or now < self._touched + LINGER
        if not held:
            self._gripper = 0.0  # the next takeover keeps the policy's gripper width
        right, up, forward, about_right, about_up, about_forward = cap
        motion, rotation = (forward, -right, up), (about_forward, -about_right, about_up)
        if self._legged:
            motion, rotation = (forward, -right, about_up), (0.0, 0.0, 0.0)
        stop, self._stop = self._stop or {GRIPPER, KEEP} <= self._down, False
        return Operator(held, motion, self._gripper, stop=stop, rotation=rotation)

    def begin(self) -> None:
        """Begin an episode with an open gripper: the next press of the left button closes it."""
        self._close_next, self._gripper = True, 0.0

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self.connection.close()

    def _button(self, number: int, pressed: bool) -> None:
        (self._down.add if pressed else self._down.discard)(number)
        if {GRIPPER, KEEP} <= self._down:
            self._stop, self._keeps, self._touched = True, False, -float("inf")
        elif pressed and number == KEEP:
            self._keeps = not self._keeps
        elif pressed and number == GRIPPER and not self._legged:
            self._gripper = -1.0 if self._close_next else 1.0
            self._close_next = not self._close_next
            self._touched = self._clock()

    def _events(self) -> Iterator[tuple[int, ...]]:
        while True:
            try:
                data = self.connection.recv(4096)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                raise UserError("spacenavd, which reads the SpaceMouse, has ended; start it, and teleop again")
            self._bytes += data
        whole = len(self._bytes) // EVENT.size * EVENT.size
        events, self._bytes = self._bytes[:whole], self._bytes[whole:]
        yield from EVENT.iter_unpack(events)
