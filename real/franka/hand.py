"""The hand's process: its calls wait for the end of a motion, and hold Python's interpreter lock meanwhile.

`python -m real.franka.hand FD JSON`, started by `real.franka.node`. A goal that arrives during a motion is executed
after it; only the newest counts.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from typing import Any

import pylibfranka as fci

from real.franka.link import Grip, HandState, Link
from real.franka.process import serve, words
from robot_rl.interface.driver import FrankaControl
from robot_rl.robots import robots

logger = logging.getLogger(__name__)
CLOSER = 0.005
"""Distance by which a goal must differ from the last one to count as another, m."""
AGAIN = 1.0
"""Time after a failed motion until the next, s."""


class Hand:
    """Loop of the hand."""

    def __init__(self, gripper: fci.Gripper, speed: float, link: Link, dry_run: bool = False):
        self.gripper, self.speed, self.link, self.dry_run = gripper, speed, link, dry_run
        self.ending = False
        self.failed = 0
        """Number of failed motions."""
        self._goal: Grip | None = None
        self._done: Grip | None = None
        self._failed_at = -math.inf
        """Time of the last failed motion, s."""

    def run(self) -> None:
        """Report the hand's state, and execute goals, until the node or a signal ends the process."""
        while not self.ending:
            self.cycle()

    def cycle(self) -> None:
        """Report the hand's state, and execute the newest goal if it is not done."""
        state, now = self.gripper.read_once(), time.monotonic()
        self.link.send(HandState(state.width, state.max_width, float(state.is_grasped), self.failed, now))
        while (message := self.link.receive()) is not None:
            if isinstance(message, Grip):
                self._goal = message
        due = not self.dry_run and now - self._failed_at > AGAIN
        if self._goal and due and self._differs(self._goal):
            self._execute(self._goal, state)
        self.ending |= self.link.closed

    def _differs(self, goal: Grip) -> bool:
        return self._done is None or abs(goal.width - self._done.width) > CLOSER

    def _execute(self, goal: Grip, state: Any) -> None:
        """Open to a width, or grasp what is in between. A motion that failed is tried again after `AGAIN`."""
        width, why = min(goal.width, state.max_width), ""
        try:
            if width > state.width:
                why = "" if self.gripper.move(width, self.speed) else "it was not reached"
            else:  # whatever is held at more than the width is the object; that there is none is no failure
                self.gripper.grasp(width, self.speed, goal.force, CLOSER, state.max_width)
        except fci.CommandException as error:
            why = words(error)
        self._done = None if why else goal
        if why:
            self.failed, self._failed_at = self.failed + 1, time.monotonic()
            logger.warning("the hand has not come to a width of %.3f m: %s; it tries again", width, why)


def connect(settings: dict[str, Any], link: Link) -> Hand:
    """Return the hand at an address."""
    config = robots.get(settings["robot"]).driver
    assert isinstance(config, FrankaControl)
    return Hand(fci.Gripper(settings["host"]), config.grasp_speed, link, settings["dry_run"])


if __name__ == "__main__":
    sys.exit(serve(connect))
