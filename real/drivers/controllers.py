"""Controllers of a ros2_control controller manager: which of them are active.

The manager's latched topic `activity` says it at every change, across DDS vendors. Older managers (Humble) lack the
topic: they are asked by their service `list_controllers`, once a second.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from real import clock
from real.bus import BusError, Node, Stamped, Subscription, make, qos
from real.drivers.state import NotReady
from robot_rl.util.errors import nearest

ACTIVITY = "controller_manager_msgs/msg/ControllerManagerActivity"
LIST = "controller_manager_msgs/srv/ListControllers"
PERIOD = 1.0
"""Time between two requests, s."""
PATIENCE = 3.0
"""Time without an answer after which the manager counts as gone, s."""
HEAD_START = 1.0
"""Time for which the topic is waited for before the service is asked, s."""


class Controllers:
    """Controllers that must be active while a robot is commanded."""

    def __init__(self, node: Node, manager: str, needed: tuple[str, ...]):
        self.manager, self.needed = node.resolve(manager), needed
        self.states: dict[str, str] = {}
        """State of each controller that the manager has: active, inactive or unconfigured."""
        self.fault = ""
        """Why commands would not be executed; empty while all needed controllers are active."""
        self._client = node.client(LIST, f"{manager}/list_controllers")
        self._activity: Subscription | None = None
        with suppress(BusError):  # rclpy of Humble does not know the type
            self._activity = node.subscribe(ACTIVITY, f"{manager}/activity", qos.LATCHED, self._on_activity)
        self._answer: Future[Any] | None = None
        self._asked = -float("inf")

    @property
    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions, of topics that only one manager may publish."""
        return [self._activity] if self._activity else []

    def told(self, timeout: float = 0.0) -> bool:
        """Return whether the manager has published its activity; wait up to `timeout` s for it."""
        return self._activity is not None and self._activity.wait(timeout, after=0)

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` s for the controllers' states; raise NotReady if one that is needed is not active."""
        end = time.monotonic() + timeout
        if not self.told(min(HEAD_START, timeout)):
            try:
                self._take(self._client.call(make(f"{LIST}_Request"), max(0.1, end - time.monotonic())))
            except BusError as error:
                if not self.told(max(0.0, end - time.monotonic())):
                    raise NotReady(f"the controllers of {self.manager} are unknown: {error}") from None
        if self.fault:
            raise NotReady(self.fault)

    def poll(self) -> None:
        """Ask for the controllers' states if it is time and the manager does not publish them. Does not wait."""
        now = clock.now()
        if self.told() or now - self._asked < PERIOD:
            return
        if self._answer is not None and not self._answer.done():
            if now - self._asked > PATIENCE:
                self.fault = f"{self.manager} has not answered for {PATIENCE:g} s; is it still running?"
                self._answer.cancel()
            return
        try:
            self._answer = self._client.send(make(f"{LIST}_Request"))
        except BusError as error:
            self.fault = f"{self.manager} is gone: {error}"
            return
        self._asked = now
        self._answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: Future[Any]) -> None:
        if answer.cancelled():
            return
        if error := answer.exception():
            self.fault = f"{self.manager} is gone: {error}"
        else:
            self._take(answer.result())

    def _take(self, response: Any) -> None:
        self._judge({each.name: each.state for each in response.controller})

    def _on_activity(self, sample: Stamped) -> None:
        self._judge({each.name: each.state.label for each in sample.msg.controllers})

    def _judge(self, states: dict[str, str]) -> None:
        self.states = states
        self.fault = next(filter(None, map(self._fault_of, self.needed)), "")

    def _fault_of(self, name: str) -> str:
        if name not in self.states:
            return (
                f"{self.manager} has no controller {name!r}; {nearest(name, self.states)} Correct `controllers` of the "
                f"profile, or load it: `ros2 run controller_manager spawner {name}`"
            )
        if self.states[name] == "active":
            return ""
        active = ", ".join(other for other, state in self.states.items() if state == "active") or "none"
        return (
            f"controller {name!r} is {self.states[name]}: `ros2 control switch_controllers --activate {name}`, and "
            f"--deactivate the one that has its joints (active: {active})"
        )
