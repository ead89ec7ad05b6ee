"""The hand's process: its calls wait for the end of a motion, and hold Python's interpreter lock meanwhile.

`python -m real.franka.hand FD JSON`, started by `real.franka.node`. A goal that arrives during a motion is executed
after it; only the newest counts.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
import time
from typing import Any

import pylibfranka as fci

from real.franka.link import Grip, HandState, Link, Report, words
from robot_rl.interface.driver import FrankaControl
from robot_rl.robots import robots

logger = logging.getLogger(__name__)
ERRORS = (fci.FrankaException, RuntimeError)
"""Exceptions of libfranka; in Python most are RuntimeErrors."""
CLOSER = 0.005
"""Distance by which a goal must differ from the last one to count as another, m."""


class Hand:
    """Loop of the hand."""

    def __init__(self, gripper: fci.Gripper, speed: float, link: Link, dry_run: bool = False):
        self.gripper, self.speed, self.link, self.dry_run = gripper, speed, link, dry_run
        self.ending = False
        self._goal: Grip | None = None
        self._done: Grip | None = None

    def run(self) -> None:
        """Report the hand's state, and execute goals, until the node or a signal ends the process."""
        while not self.ending:
            state = self.gripper.read_once()
            self.link.send(HandState(state.width, float(state.is_grasped), time.monotonic()))
            while (message := self.link.receive()) is not None:
                if isinstance(message, Grip):
                    self._goal = message
            if self._goal and not self.dry_run and self._differs(self._goal):
                self._execute(self._goal, state)
            self.ending |= self.link.closed

    def _differs(self, goal: Grip) -> bool:
        return self._done is None or abs(goal.width - self._done.width) > CLOSER

    def _execute(self, goal: Grip, state: Any) -> None:
        """Open to a width, or grasp what is in between."""
        self._done = goal
        try:
            if goal.width > state.width:
                self.gripper.move(goal.width, self.speed)
            else:  # whatever is held at more than the width is the object
                self.gripper.grasp(goal.width, self.speed, goal.force, CLOSER, state.max_width)
        except fci.CommandException as error:  # as after an object was missed
            logger.warning("the hand refused a width of %.3f m: %s", goal.width, error)


def main(fd: int, settings: dict[str, Any]) -> int:
    link, config = Link(socket.socket(fileno=fd)), robots.get(settings["robot"]).driver
    assert isinstance(config, FrankaControl)
    try:
        hand = Hand(fci.Gripper(settings["host"]), config.grasp_speed, link, settings["dry_run"])

        def end(*_: object) -> None:
            hand.ending = True

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        hand.run()
    except ERRORS as error:
        link.send(Report(words(error), True))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2])))
