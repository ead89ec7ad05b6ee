"""A scripted operator of a walking robot: steer it, stop it in mid-walk, reset it, and continue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from real.bus import Node, Stamped, qos
from real.teleop.commands import RELEASED, Operator
from real.topics import EPISODE_TOPIC

Route = tuple[tuple[float, str, Operator], ...]
"""Duration, s, name and input of each part of the route."""


def _steer(forward: float, left: float = 0.0, turn: float = 0.0) -> Operator:
    """Return input with shares of the ends of the task's ranges."""
    return Operator(held=True, motion=(forward, left, turn))


ROUTE: Route = (
    (2.5, "walks forward", _steer(0.8)),
    (2.5, "turns", _steer(0.3, turn=0.8)),
    (2.5, "walks sideways", _steer(0.0, left=0.8)),
    (1.5, "walks forward", _steer(0.8)),
)
STOP = Operator(stop=True)
RESET = Operator(reset=True)
PRESS = 0.2
"""Seconds for which a button is down."""
LIE = 2.0
"""Seconds that a stopped robot lies until reset is pressed."""
AGAIN = 5.0
"""Seconds between two presses of reset, until it stands."""


class Walker:
    """A device that follows a route in every episode, and presses stop at the end of the first one's."""

    help = "a scripted person steers, stops and resumes"

    def __init__(
        self,
        node: Node,
        say: Callable[[str], None],
        route: Route = ROUTE,
        lie: float = LIE,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.route, self.lie, self.clock, self._say = route, lie, clock, say
        self._now: tuple[int, str, float] = (-1, "", clock())
        """Episode, its phase, and the phase's begin, monotonic s."""
        self._stopped, self._did = False, ""
        self._episodes = node.subscribe("std_msgs/msg/String", EPISODE_TOPIC, qos.LATCHED, self._on_episode)

    def _on_episode(self, sample: Stamped) -> None:
        told = json.loads(sample.msg.data)
        self._now = (told["episode"], told["phase"], self.clock())

    def read(self) -> Operator:
        """Return the current input."""
        did, inputs = self._input()
        if did and did != self._did:
            self._say(did)
        self._did = did
        return inputs

    def _input(self) -> tuple[str, Operator]:
        episode, phase, since = self._now
        elapsed = self.clock() - since
        if phase == "resetting" and self._stopped:
            pressed = elapsed >= self.lie and (elapsed - self.lie) % AGAIN < PRESS
            return "presses reset" if pressed else "", RESET if pressed else RELEASED
        if phase != "running":
            return "", RELEASED
        self._stopped &= episode == 0
        for seconds, did, inputs in self.route:
            if elapsed < seconds:
                return did, inputs
            elapsed -= seconds
        if episode == 0:
            self._stopped = True
            return "presses stop", STOP
        return "lets go", RELEASED

    def close(self) -> None:
        """Stop listening."""
        self._episodes.close()
