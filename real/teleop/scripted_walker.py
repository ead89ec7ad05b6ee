"""Scripted operator of a legged robot: steer, stop the walking robot, reset, continue."""

from collections.abc import Callable

from real.bus import Node, Stamped, qos
from real.clock import now
from real.teleop.commands import RELEASED, Operator
from real.topics import EPISODE_TOPIC, STATUS, Episode

Route = tuple[tuple[float, str, Operator], ...]
"""Duration (s), name and operator input of each part of a route. Motion is a fraction of the task's velocity limits."""
ROUTE: Route = (
    (2.5, "walks forward", Operator(held=True, motion=(0.8, 0.0, 0.0))),
    (2.5, "turns", Operator(held=True, motion=(0.3, 0.0, 0.8))),
    (2.5, "walks sideways", Operator(held=True, motion=(0.0, 0.8, 0.0))),
    (1.5, "walks forward", Operator(held=True, motion=(0.8, 0.0, 0.0))),
)
STOP = Operator(stop=True)
RESET = Operator(reset=True)
PRESS = 0.2
"""Duration of a press of the reset button, s."""
LIE = 2.0
"""Time from a stop to the first press of reset, s."""
AGAIN = 5.0
"""Interval between presses of reset until the robot stands, s."""


class Walker:
    """Teleop device that follows a route in each episode and presses stop at the end of the first episode."""

    help = "a scripted person steers, stops and resumes"

    def __init__(
        self, node: Node, say: Callable[[str], None], route: Route = ROUTE, lie: float = LIE,
        clock: Callable[[], float] = now,
    ):  # fmt: skip
        self.route, self.lie, self.clock, self._say = route, lie, clock, say
        self._now: tuple[int, str, float] = (-1, "", clock())
        """Number and phase of the episode; start of the phase, s."""
        self._stopped, self._action = False, ""
        self._episodes = node.subscribe(STATUS, EPISODE_TOPIC, qos.LATCHED, self._on_episode)

    def _on_episode(self, sample: Stamped) -> None:
        episode = Episode.of(sample.msg)
        if self._now[:2] != (episode.number, episode.phase):
            self._now = (episode.number, episode.phase, self.clock())

    def read(self) -> Operator:
        """Return the operator's input."""
        action, inputs = self._input()
        if action and action != self._action:
            self._say(action)
        self._action = action
        return inputs

    def _input(self) -> tuple[str, Operator]:
        """Return the name of the person's current action and the operator input for it."""
        episode, phase, since = self._now
        elapsed = self.clock() - since
        if phase == "resetting" and self._stopped:
            pressed = elapsed >= self.lie and (elapsed - self.lie) % AGAIN < PRESS
            return "presses reset" if pressed else "", RESET if pressed else RELEASED
        if phase != "running":
            return "", RELEASED
        self._stopped &= episode == 0
        for seconds, action, inputs in self.route:
            if elapsed < seconds:
                return action, inputs
            elapsed -= seconds
        if episode == 0:
            self._stopped = True
            return "presses stop", STOP
        return "lets go", RELEASED

    def close(self) -> None:
        """Unsubscribe from the episode topic."""
        self._episodes.close()
