"""A terminal's keyboard as the operator's device.

A terminal does not report a key's release, only its repeats::

    key goes down    0.25 to 0.66 s nothing    a byte every 10 to 90 ms        key goes up: nothing
    |                                          | | | | | | | | | | | | | | |
    moves 0.2 s, then holds still              moves .......................0.2 s, then control goes back

So a key counts as down for `HOLD` after its last byte: longer than two repeats of the slowest terminal (the Linux
console's 92 ms), short enough to stop within 0.2 s. Until the first repeat the robot holds still under the operator's
control (`BRIDGE`), so that the policy does not act in between: a tap is one small step, and taps keep control.
"""

from __future__ import annotations

import math
import os
import select
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from real.teleop.commands import PRESSES, Operator
from real.teleop.stream import Finished
from robot_rl.util.errors import UserError

HOLD = 0.2  # s a key counts as down after its last byte
BRIDGE = 0.7  # s of control after a key's first byte: beyond X11's first repeat at 0.66 s, the slowest
SLOW = 0.25  # of full speed, with Shift
_SEQUENCE = 0.15  # s within which an escape sequence ends, be it read in two parts
_MOTION = {"w": (0, 1.0), "s": (0, -1.0), "a": (1, 1.0), "d": (1, -1.0), "r": (2, 1.0), "f": (2, -1.0)}
_WALK = {key: _MOTION[key] for key in "wsad"} | {"j": (2, 1.0), "l": (2, -1.0)}
_TURN = {"j": (5, 1.0), "l": (5, -1.0), "i": (4, 1.0), "k": (4, -1.0), "o": (3, 1.0), "u": (3, -1.0)}
_ARM = _MOTION | _TURN  # rotations about x, y, z are axes 3, 4, 5
_GRIP = {" ": 0.0, "c": -1.0, "v": 1.0}  # 0: the other than last time
_PRESS = {"y": "success", "n": "failure", "x": "stop", "\r": "reset", "\n": "reset"}

HELP = """\
w / s   forward / back        space   close / open the gripper; c close, v open
a / d   left / right          h       keep control without a key, until h again
r / f   up / down             y / n   the episode succeeded / failed
j / l   turn left / right     x       EMERGENCY STOP
i / k   lean forward / back   enter   reset        q   quit
u / o   lean left / right     Shift   slower
Turning and leaning need a policy that turns the tool.
You have control while you hold or tap a motion key; release it and the policy continues.
"""
WALK_HELP = """\
w / s   forward / back        h       keep control without a key, until h again
a / d   left / right          y / n   the episode succeeded / failed
j / l   turn left / right     x       EMERGENCY STOP: the robot is damped
Shift   slower                enter   reset: it stands up and continues    q   quit
Hold or tap a motion key: you steer; release: back to the previous command source.
"""


class Keyboard:
    """Keys of the terminal at ``fd``, which `close` restores.

    Ctrl-C works as usual. Ctrl-Z, Ctrl-\\ and Ctrl-S are disabled: they would suspend the loop or leave no echo.
    """

    def __init__(self, fd: int = 0, clock: Callable[[], float] = time.monotonic, legged: bool = False):
        self.help, self._keys = (WALK_HELP, _WALK) if legged else (HELP, _ARM)
        if not os.isatty(fd):
            raise UserError(
                "the keyboard needs a terminal, and standard input is not a terminal: start `robot-rl teleop keyboard`"
                " in a terminal of its own (for `record` with --teleop topic), or use a gamepad"
            )
        with suppress(OSError):  # not our controlling terminal, so it has no background
            if os.tcgetpgrp(fd) != os.getpgrp():
                raise UserError("the keyboard is not read in the background: start this without & or use fg")
        self._fd, self._clock = fd, clock
        self._before: list[Any] | None = termios.tcgetattr(fd)
        self._last: dict[str, float] = {}  # when each key's last byte came
        self._moved: list[tuple[float, float]] = [(-math.inf, 0.0)] * 6  # per axis: the last byte, its value
        self._control = -math.inf  # until when there is control
        self._hands_on = False
        self._close_next, self._gripper = True, 0.0
        self._escape, self._escaped = "", -math.inf  # "", "ESC" or "CSI": inside a sequence; and since when
        self._finished = False
        self._raw()

    def _raw(self) -> None:
        mode = termios.tcgetattr(self._fd)
        mode[0] &= ~termios.IXON
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        off = os.fpathconf(self._fd, "PC_VDISABLE")
        for key in (termios.VSUSP, termios.VQUIT):
            mode[6][key] = bytes([off])
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSAFLUSH, mode)  # and drop earlier input

    def read(self) -> Operator:
        """Return the input; raise `Finished` after q, `UserError` if the terminal is gone."""
        if self._finished:
            raise Finished
        now = self._clock()
        for byte in self._bytes():
            self._take(chr(byte), now)
        held = self._hands_on or now < self._control
        if not held:
            self._gripper = 0.0  # the policy may move it meanwhile: the next takeover starts from there
        x, y, z, roll, pitch, yaw = (value if now < at + HOLD else 0.0 for at, value in self._moved)
        down = {name for key, name in _PRESS.items() if now < self._last.get(key, -math.inf) + HOLD}
        presses = {name: name in down for name in PRESSES}
        return Operator(held, (x, y, z), self._gripper, **presses, rotation=(roll, pitch, yaw))

    def begin(self) -> None:
        """Begin an episode, with an open gripper: the next space closes it."""
        self._close_next, self._gripper = True, 0.0

    def close(self) -> None:
        """Restore the terminal. Idempotent."""
        before, self._before = self._before, None
        if before is not None:
            with suppress(termios.error):  # it was closed meanwhile
                termios.tcsetattr(self._fd, termios.TCSAFLUSH, before)

    def _bytes(self) -> bytes:
        try:  # not O_NONBLOCK: that would hold for every program that shares the terminal
            ready = select.select([self._fd], [], [], 0.0)[0]
            found = os.read(self._fd, 1024) if ready else b""
        except OSError:
            ready, found = [self._fd], b""
        if ready and not found:
            raise UserError("the terminal of the keyboard was closed; open another and start teleop again")
        return found

    def _take(self, char: str, now: float) -> None:
        if self._within_escape(char, now):
            return
        key = char.lower()  # with caps lock on, x must still stop
        since = now - self._last.get(key, -math.inf)
        self._last[key] = now
        if key in self._keys:
            axis, value = self._keys[key]
            self._moved[axis] = (now, value if char == key else SLOW * value)
            self._control = max(self._control, now + BRIDGE) if since > HOLD else now + HOLD
        elif key == "x":
            self._hands_on, self._control = False, -math.inf
        elif since < BRIDGE:
            pass  # a repeat: one press of space or h toggles once, however long
        elif key in _GRIP:
            self._gripper = _GRIP[key] or (-1.0 if self._close_next else 1.0)
            self._close_next = self._gripper > 0
            self._control = max(self._control, now + BRIDGE)
        elif key == "h":
            self._hands_on = not self._hands_on
        elif key == "q":
            self._finished = True

    def _within_escape(self, char: str, now: float) -> bool:
        """Ignore the sequences of arrow and function keys: ESC [ D is no Shift-d."""
        state, late = self._escape, now - self._escaped > _SEQUENCE
        self._escape = ""
        if char == "\x1b":
            self._escape, self._escaped = "ESC", now
            return True
        if not state or late:
            return False
        if state == "ESC" and char in "[O":
            self._escape = "CSI"
            return True
        if state == "CSI":
            self._escape = "" if "@" <= char <= "~" and char != "[" else "CSI"  # F1 on the console: ESC [ [ A
            return True
        return False  # Alt and a key is that key
