"""Lifecycle of a session's node, as of a managed node of ROS 2: what is loaded is inactive; only what is active moves.

The session does the transitions itself, in its own thread, and tells `done`. Another node may ask for one with
`~/change_state` (`ros2 lifecycle set`); the answer comes when it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from real import clock
from real.bus import Node, make, qos
from robot_rl.util.errors import UserError

STATES = {"unconfigured": 1, "inactive": 2, "active": 3, "finalized": 4}
"""Primary states and their ids in lifecycle_msgs/State."""
DESCRIPTION = "lifecycle_msgs/msg/TransitionDescription"
POLL = 0.05
"""Interval at which an inactive session looks for a request, s, by the machine's clock."""


class Transition(NamedTuple):
    """Edge of the state machine; ids are those of lifecycle_msgs/Transition."""

    name: str
    id: int
    start: str
    goal: str


TRANSITIONS = (
    Transition("configure", 1, "unconfigured", "inactive"),
    Transition("activate", 3, "inactive", "active"),
    Transition("deactivate", 4, "active", "inactive"),
    Transition("shutdown", 6, "inactive", "finalized"),
    Transition("shutdown", 7, "active", "finalized"),
)
ASKED = ("activate", "deactivate", "shutdown")
"""Transitions that another node may ask for; a session configures itself, and ends instead of forgetting its policy."""


class Requested(UserError):  # noqa: N818 - a request, which ends the running episode
    """Another node asks for the transition `name`."""

    def __init__(self, name: str):
        super().__init__(f"lifecycle: {name}")
        self.name = name


class Lifecycle:
    """State of a node, the services that tell and change it, and the topic `~/transition_event`."""

    def __init__(self, node: Node):
        self.state = "unconfigured"
        self._lock = threading.Lock()
        self._asked: tuple[Transition, Future[Any]] | None = None
        self._events = node.publisher("lifecycle_msgs/msg/TransitionEvent", "~/transition_event", qos.DEFAULT)
        serve: dict[str, Callable[[Any], Any]] = {
            "ChangeState": self._change,
            "GetState": lambda _: self._answer("GetState", current_state=_state(self.state)),
            "GetAvailableStates": lambda _: self._answer(
                "GetAvailableStates", available_states=[make("lifecycle_msgs/msg/State", **_state(s)) for s in STATES]
            ),
            "GetAvailableTransitions": lambda _: self._answer(
                "GetAvailableTransitions", available_transitions=[make(DESCRIPTION, **_edge(t)) for t in self._open()]
            ),
        }
        topics = {name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name)[1:] for name in serve}
        self._services = [
            node.service(f"lifecycle_msgs/srv/{name}", f"~/{topics[name]}", handler) for name, handler in serve.items()
        ]

    def _open(self) -> list[Transition]:
        return [t for t in TRANSITIONS if t.start == self.state and t.name in ASKED]

    def _answer(self, service: str, **fields: Any) -> Any:
        return make(f"lifecycle_msgs/srv/{service}_Response", **fields)

    def _change(self, request: Any) -> Any:
        """Ask the session for a transition, by its id or its name; refuse one that is impossible now."""
        wanted = request.transition
        with self._lock:
            found = [t for t in self._open() if wanted.id == t.id or (not wanted.id and wanted.label == t.name)]
            if not found or self._asked is not None:
                return self._answer("ChangeState", success=False)
            self._asked = found[0], Future()
            return self._asked[1]

    def done(self, name: str) -> None:
        """Take note that the session has done a transition, and answer who asked for it."""
        with self._lock:
            transition = next(t for t in TRANSITIONS if (t.name, t.start) == (name, self.state))
            asked, self._asked = self._asked, None
            self.state = transition.goal
        edge = _edge(transition)
        self._events.publish(make("lifecycle_msgs/msg/TransitionEvent", timestamp=clock.ros_time(), **edge))
        if asked is not None:
            asked[1].set_result(self._answer("ChangeState", success=asked[0].name == name))

    def end(self) -> None:
        """Take note of the session's end."""
        if self.state in ("inactive", "active"):
            self.done("shutdown")

    def refuse(self) -> None:
        """Answer who asked for a transition that it has failed."""
        with self._lock:
            asked, self._asked = self._asked, None
        if asked is not None:
            asked[1].set_result(self._answer("ChangeState", success=False))

    def check(self) -> None:
        """Raise Requested if another node asks for a transition of an active session."""
        asked = self._asked
        if asked is not None and self.state == "active":
            raise Requested(asked[0].name)

    def wait(self) -> str:
        """Wait, inactive, until another node asks for a transition; return its name."""
        while self._asked is None:
            clock.WALL.sleep_until(clock.WALL.now() + POLL)
        return self._asked[0].name


def _state(name: str) -> dict[str, Any]:
    return {"id": STATES[name], "label": name}


def _edge(transition: Transition) -> dict[str, Any]:
    states = {"start_state": _state(transition.start), "goal_state": _state(transition.goal)}
    return {"transition": {"id": transition.id, "label": transition.name}} | states
