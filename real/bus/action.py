"""Actions: clients, and what they share with servers. An action is three services and two topics, in both backends.

::

    client = node.action_client("control_msgs/action/GripperCommand", "gripper/gripper_cmd")
    goal = client.send_goal(make("control_msgs/action/GripperCommand_Goal", command={"position": 0.04}), timeout=1.0)
    status, result = goal.result(timeout=5.0)

Not rclpy's own classes: they would run a server's goals in the thread that delivers topics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from real.bus.messages import encode, make
from real.bus.names import BusError
from real.bus.qos import LATCHED

if TYPE_CHECKING:
    from real.bus.node import Node

STATUS = ("unknown", "accepted", "executing", "canceling", "succeeded", "canceled", "aborted")
"""Names of a goal's status; their indices are the numbers in `action_msgs/msg/GoalStatus`."""
ENDED = STATUS[4:]
CANCEL, STATUSES = "action_msgs/srv/CancelGoal", "action_msgs/msg/GoalStatusArray"
Feedback = Callable[[Any], None] | None
_KEPT = 100  # goals whose feedback a client passes on


def goal_id(uuid: bytes) -> Any:
    """Return the message of a goal's id."""
    return make("unique_identifier_msgs/msg/UUID", uuid=uuid)


class ClientGoal:
    """A goal that a client has sent."""

    def __init__(self, client: ActionClient, uuid: bytes, accepted: bool) -> None:
        self._client, self.uuid = client, uuid
        self.accepted = accepted
        """Whether the server has accepted the goal; without that it has no result."""
        self._result: Future[Any] | None = None

    @property
    def status(self) -> str:
        """Return the status that the server has published last, one of `STATUS`."""
        latest = self._client.statuses.latest
        listed = latest.msg.status_list if latest is not None else ()
        return next((STATUS[s.status] for s in listed if s.goal_info.goal_id.uuid.tobytes() == self.uuid), STATUS[0])

    def result(self, timeout: float) -> tuple[str, Any]:
        """Wait for the goal's end; return its status "succeeded", "canceled" or "aborted", and its result. Raises
        BusError for a rejected goal, after ``timeout`` seconds, and if the server leaves."""
        name = self._client.name
        if not self.accepted:
            raise BusError(f"the server of {name} has rejected this goal: it has no result; read the server's log")
        if self._client.node.delivers():
            raise BusError(f"result of {name} in a callback: it could not arrive; use a thread")
        if self._result is None:
            request = make(f"{self._client.type_name}_GetResult_Request", goal_id=goal_id(self.uuid))
            self._result = self._client.results.send(request)
        try:
            response = self._result.result(timeout)
        except TimeoutError:
            raise BusError(f"goal of {name} has not ended within {timeout:g} s: wait longer, or cancel it") from None
        if response.status >= len(STATUS) or STATUS[response.status] not in ENDED:
            raise BusError(f"the server of {name} does not know this goal any more: was it started again?")
        return STATUS[response.status], response.result

    def cancel(self, timeout: float = 1.0) -> bool:
        """Ask the server to cancel the goal; return whether it will. The goal ends later, see `result`."""
        request = make(f"{CANCEL}_Request", goal_info={"goal_id": goal_id(self.uuid)})
        response = self._client.cancels.call(request, timeout)
        return any(info.goal_id.uuid.tobytes() == self.uuid for info in response.goals_canceling)


class ActionClient:
    """Client of an action."""

    def __init__(self, node: Node, type_name: str, name: str) -> None:
        self.node, self.type_name, self.name = node, type_name, node.resolve(name)
        self._feedback: dict[bytes, Feedback] = {}
        base = f"{self.name}/_action"
        self._goals = node.client(f"{type_name}_SendGoal", f"{base}/send_goal")
        self.results = node.client(f"{type_name}_GetResult", f"{base}/get_result")
        self.cancels = node.client(CANCEL, f"{base}/cancel_goal")
        self.statuses = node.subscribe(STATUSES, f"{base}/status", LATCHED)
        self._updates = node.subscribe(f"{type_name}_FeedbackMessage", f"{base}/feedback", callback=self._on_feedback)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` s for a server of the action; return whether there is one. BusError for one of another
        vendor."""
        deadline = time.monotonic() + timeout
        ends, topics = (self.results, self.cancels), (self.statuses, self._updates)
        return self._goals.wait(timeout) and self.node.wait_for(
            lambda: all(end.ready() for end in ends) and all(topic.matched for topic in topics),
            max(0.0, deadline - time.monotonic()),
        )

    def send_goal(self, goal: Any, feedback: Feedback = None, timeout: float = 1.0) -> ClientGoal:
        """Send a goal and wait up to ``timeout`` s until the server has accepted or rejected it. ``feedback`` is called
        with the goal's feedback messages in the reader thread, and must return quickly."""
        if self.node.delivers():
            raise BusError(f"goal for {self.name} in a callback: its response could not arrive; use a thread")
        encode(goal, f"{self.type_name}_Goal")  # raises for another type
        uuid, deadline = os.urandom(16), time.monotonic() + timeout
        if not self.wait(timeout):
            raise BusError(
                f"no server of action {self.name} ({self.type_name}) within {timeout:g} s: start it, or check its name"
                " with 'ros2 action list -t'"
            )
        self._feedback[uuid] = feedback
        while len(self._feedback) > _KEPT:
            self._feedback.pop(next(iter(self._feedback)))
        request = make(f"{self.type_name}_SendGoal_Request", goal_id=goal_id(uuid), goal=goal)
        response = self._goals.call(request, max(0.1, deadline - time.monotonic()))
        return ClientGoal(self, uuid, response.accepted)

    def close(self) -> None:
        """Stop. Idempotent; it cancels no goal."""
        for end in (self._goals, self.results, self.cancels, self.statuses, self._updates):
            end.close()

    def _on_feedback(self, sample: Any) -> None:
        callback = self._feedback.get(sample.msg.goal_id.uuid.tobytes())
        if callback is not None:
            callback(sample.msg.feedback)
