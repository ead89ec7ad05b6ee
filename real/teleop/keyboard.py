"""Keyboard of a terminal.

A terminal reports repeats of a key but no release::

    key down    0.25 to 0.66 s without bytes    a byte every 10 to 90 ms    key up: no byte
    |                                           | | | | | | | | | | | | |
    moves 0.2 s, then holds its position        moves ......................0.2 s, then control returns

A key counts as down for `HOLD` after its last byte: longer than two repeats of the slowest terminal (the Linux
console's 92 ms), short enough to stop within 0.2 s. Until the first repeat the operator keeps control without motion
(`BRIDGE`), so that the policy does not act meanwhile. A tap is one small step; repeated taps keep control.
"""

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

HOLD = 0.2
"""Time for which a key counts as down after its last byte, s."""
BRIDGE = 0.7
"""Time for which a key's first byte gives control, s. The slowest first repeat, that of X11, comes after 0.66 s."""
SLOW = 0.25
"""Fraction of full speed while Shift is held."""
_SEQUENCE = 0.15  # longest time between the parts of an escape sequence, s
_MOTION = {"w": (0, 1.0), "s": (0, -1.0), "a": (1, 1.0), "d": (1, -1.0), "r": (2, 1.0), "f": (2, -1.0)}
_WALK = {key: _MOTION[key] for key in "wsad"} | {"j": (2, 1.0), "l": (2, -1.0)}
_TURN = {"j": (5, 1.0), "l": (5, -1.0), "i": (4, 1.0), "k": (4, -1.0), "o": (3, 1.0), "u": (3, -1.0)}
_ARM = _MOTION | _TURN  # rotations about x, y, z are axes 3, 4, 5
_GRIP = {" ": 0.0, "c": -1.0, "v": 1.0}  # 0: toggle
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
    """Keyboard of the terminal with file descriptor ``fd``, whose mode `close` restores. Ctrl-C works as usual. Ctrl-Z,
    Ctrl-\\ and Ctrl-S are disabled: they would suspend the loop or leave the terminal without echo."""

    def __init__(self, fd: int = 0, clock: Callable[[], float] = time.monotonic, legged: bool = False):
        self.help, self._keys = (WALK_HELP, _WALK) if legged else (HELP, _ARM)
        if not os.isatty(fd):
            raise UserError(
                "the keyboard needs a terminal, and standard input is not a terminal: start `robot-rl teleop keyboard`"
                " in a terminal of its own (for `record` with --teleop topic), or use a gamepad"
            )
        with suppress(OSError):  # not the controlling terminal: there is no background
            if os.tcgetpgrp(fd) != os.getpgrp():
                raise UserError("the keyboard is not read in the background: start this without & or use fg")
        self._fd, self._clock = fd, clock
        self._before: list[Any] | None = termios.tcgetattr(fd)
        self._last: dict[str, float] = {}  # time of each key's last byte
        self._moved: list[tuple[float, float]] = [(-math.inf, 0.0)] * 6  # time and value of each axis's last byte
        self._control = -math.inf  # end of control
        self._hands_on = False
        self._close_next, self._gripper = True, 0.0
        self._escape, self._escaped = "", -math.inf  # state in an escape sequence ("", "ESC", "CSI") and its start
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
        termios.tcsetattr(self._fd, termios.TCSAFLUSH, mode)  # drops earlier input

    @property
    def kept(self) -> bool:
        """Return whether the operator keeps control, by h, without a key."""
        return self._hands_on

    def read(self) -> Operator:
        """Return the operator's input; raise `Finished` after q and `UserError` if the terminal is gone."""
        if self._finished:
            raise Finished
        now = self._clock()
        for byte in self._bytes():
            self._take(chr(byte), now)
        held = self._hands_on or now < self._control
        if not held:
            self._gripper = 0.0  # the next takeover keeps the policy's gripper width
        x, y, z, roll, pitch, yaw = (value if now < last + HOLD else 0.0 for last, value in self._moved)
        down = {name for key, name in _PRESS.items() if now < self._last.get(key, -math.inf) + HOLD}
        presses = {name: name in down for name in PRESSES}
        return Operator(held, (x, y, z), self._gripper, **presses, rotation=(roll, pitch, yaw))

    def begin(self) -> None:
        """Begin an episode with an open gripper: the next space closes it."""
        self._close_next, self._gripper = True, 0.0

    def close(self) -> None:
        """Restore the terminal's mode. Idempotent."""
        before, self._before = self._before, None
        if before is not None:
            with suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(self._fd, termios.TCSAFLUSH, before)

    def _bytes(self) -> bytes:
        try:  # without O_NONBLOCK, which would apply to all programs of the terminal
            ready = select.select([self._fd], [], [], 0.0)[0]
            data = os.read(self._fd, 1024) if ready else b""
        except OSError:
            ready, data = [self._fd], b""
        if ready and not data:
            raise UserError("the terminal of the keyboard was closed; open another and start teleop again")
        return data

    def _take(self, char: str, now: float) -> None:
        if self._within_escape(char, now):
            return
        key = char.lower()  # x stops with Caps Lock too
        since = now - self._last.get(key, -math.inf)
        self._last[key] = now
        if key in self._keys:
            axis, value = self._keys[key]
            self._moved[axis] = (now, value if char == key else SLOW * value)
            self._control = max(self._control, now + BRIDGE) if since > HOLD else now + HOLD
        elif key == "x":
            self._hands_on, self._control = False, -math.inf
        elif since < BRIDGE:
            pass  # a repeat: each press of space or h toggles once
        elif key in _GRIP:
            self._gripper = _GRIP[key] or (-1.0 if self._close_next else 1.0)
            self._close_next = self._gripper > 0
            self._control = max(self._control, now + BRIDGE)
        elif key == "h":
            self._hands_on = not self._hands_on
        elif key == "q":
            self._finished = True

    def _within_escape(self, char: str, now: float) -> bool:
        """Return whether a character belongs to an arrow or function key's escape sequence: ESC [ D is not Shift-d."""
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
        return False  # Alt with a key counts as the key
