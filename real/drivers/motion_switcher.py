"""Hand-over of a robot's motors from its own mode, such as sport mode, to the guard: by Unitree's motion switcher.

While a mode is active, its process commands the motors too. Two writers make a robot shake. Does not import torch.
"""

import json
import logging

from real import clock
from real.drivers.unitree_api import ApiClient
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
CHECK_MODE, RELEASE_MODE = 1001, 1003
"""Api ids of the motion switcher."""
STAND_DOWN = 1005
"""Api id of sport mode."""
DISCOVERY = 0.3
"""Wait for the service, which the publisher of the robot's state announces at about the same time, s."""
LYING = 3.0
"""Time for the robot to lie down before its mode is released, s."""
RELEASE = 15.0
"""Longest wait until a released mode has ended, s."""
RETRY = 1.0
"""Interval of requests to release, s, as in Unitree's examples."""


class MotionSwitcher(ApiClient):
    """Client that knows the active mode."""

    mode = ""
    """Name of the active mode; empty if none is known to be active."""
    _look = -1
    """Identity of the newest request of `look`."""

    def take_over(self, release: bool) -> None:
        """Raise UserError if a mode is active; with the operator's consent `release`, lay the robot down and end it.

        A robot without the service, such as a twin, has no modes."""
        if not self.node.wait_for(lambda: self.served, DISCOVERY) or not (mode := self.check()):
            return
        if not release:
            raise UserError(
                f"mode {mode!r} of the robot is active and commands its motors too; end it in Unitree's app, or let "
                "the guard lay the robot down and end it: robot-rl guard … --release"
            )
        logger.warning("the robot lies down, and its mode %r is released", mode)
        self.release()

    def check(self) -> str:
        """Wait for the name of the active mode and return it; empty if none is active."""
        mode = _mode(self.call(CHECK_MODE, {}))
        if mode is None:
            raise UserError(f"service {self.service!r} of the robot names no mode; is its firmware supported?")
        self.mode = mode
        return mode

    def look(self) -> None:
        """Ask for the active mode without waiting; the answer sets `mode`."""
        self._awaited.clear()  # an answer that has not come until now is lost
        if self.served:
            self._look = self.send(CHECK_MODE, {})

    def answered(self, identity: int, code: int, data: str) -> None:
        if identity != self._look:
            super().answered(identity, code, data)
        elif code == 0:
            try:
                self.mode = _mode(json.loads(data)) or ""
            except ValueError:
                logger.warning("service %r of the robot answers no JSON: %r", self.service, data)

    def release(self) -> None:
        """Let the robot lie down by sport mode, and end its active mode; raise UserError if it stays active."""
        sport = ApiClient(self.node, "sport")
        try:
            if self.node.wait_for(lambda: sport.served, 1.0):
                sport.call(STAND_DOWN, {})
                clock.sleep(LYING)
        finally:
            sport.close()
        end = clock.now() + RELEASE
        while mode := self.check():
            if clock.now() > end:
                raise UserError(f"mode {mode!r} is still active after {RELEASE:g} s; end it in Unitree's app")
            self.call(RELEASE_MODE, {})
            clock.sleep(RETRY)


def _mode(answer: object) -> str | None:
    """Return the mode's name in an answer to `CHECK_MODE`; None if it has none."""
    name = answer.get("name") if isinstance(answer, dict) else None
    return name if isinstance(name, str) else None
