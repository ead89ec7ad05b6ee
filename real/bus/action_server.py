"""Server of an action, which runs each goal in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from real import clock
from real.bus.action import CANCEL, ENDED, STATUS, STATUSES, goal_id
from real.bus.messages import encode, make
from real.bus.qos import LATCHED
from real.bus.stamps import stamp

if TYPE_CHECKING:
    from real.bus.node import Node

_KEPT = 100  # ended goals whose results can still be fetched
_NONE, _REJECTED, _UNKNOWN, _TERMINATED = range(4)  # return codes of CancelGoal


class ServerGoal:
    """An accepted goal. ``goal.request`` is the goal's message."""

    def __init__(self, server: ActionServer, uuid: bytes, request: Any) -> None:
        self._server, self.uuid, self.request = server, uuid, request
        self.stamp = clock.ros_time()
        self.canceling = threading.Event()
        """Set when a client has canceled the goal: ``execute`` should stop and return ``goal.canceled(result)``."""
        self.status = "accepted"
        self.end = "succeeded"
        """Status after the return of ``execute``."""
        self.response: Future[Any] = Future()

    def feedback(self, message: Any) -> None:
        """Publish a feedback message."""
        self._server.publish_feedback(self.uuid, message)

    def canceled(self, result: Any) -> Any:
        """End the goal as canceled; return the result."""
        self.end = "canceled"
        return result

    def aborted(self, result: Any) -> Any:
        """End the goal as aborted; return the result."""
        self.end = "aborted"
        return result


Execute = Callable[[ServerGoal], Any]
Accept = Callable[[Any], bool]


class ActionServer:
    """Server of an action, see `Node.action_server`."""

    def __init__(
        self, node: Node, type_name: str, name: str, execute: Execute, accept: Accept, cancel: Accept, parallel: int
    ) -> None:
        self._node, self.type_name, self.name = node, type_name, node.resolve(name)
        self._execute, self._accept, self._cancel, self._parallel = execute, accept, cancel, parallel
        self._goals: dict[bytes, ServerGoal] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.RLock()  # guards goals and their status
        self._closed = self._gone = False
        base = f"{self.name}/_action"
        self._statuses = node.publisher(STATUSES, f"{base}/status", LATCHED)
        self._updates = node.publisher(f"{type_name}_FeedbackMessage", f"{base}/feedback")
        self._services = (
            node.service(f"{type_name}_SendGoal", f"{base}/send_goal", self._on_goal),
            node.service(f"{type_name}_GetResult", f"{base}/get_result", self._on_result),
            node.service(CANCEL, f"{base}/cancel_goal", self._on_cancel),
        )
        self._publish_status()

    def publish_feedback(self, uuid: bytes, message: Any) -> None:
        """Publish feedback of a goal."""
        encode(message, f"{self.type_name}_Feedback")  # raises for another type
        self._updates.publish(make(f"{self.type_name}_FeedbackMessage", goal_id=goal_id(uuid), feedback=message))

    def close(self) -> None:
        """Cancel all goals, wait up to 2 s for their end, and stop serving. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            threads = list(self._threads)
            for goal in self._goals.values():
                goal.canceling.set()
        deadline = time.monotonic() + 2.0
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._gone = True
        for end in (*self._services, self._updates, self._statuses):
            end.close()

    def _on_goal(self, request: Any) -> Any:
        uuid = request.goal_id.uuid.tobytes()
        with self._lock:
            free = not self._closed and uuid not in self._goals and len(self._threads) < self._parallel
        accepted = free and bool(self._accept(request.goal))
        goal = ServerGoal(self, uuid, request.goal)
        if accepted:
            thread = threading.Thread(target=self._run, args=(goal,), name=f"goal of {self.name}", daemon=True)
            with self._lock:
                self._goals[uuid] = goal
                self._threads.add(thread)
                ended = [key for key, kept in self._goals.items() if kept.status in ENDED]
                for key in ended[: max(0, len(ended) - _KEPT)]:
                    del self._goals[key]
            thread.start()
        return make(f"{self.type_name}_SendGoal_Response", accepted=accepted, stamp=stamp(goal.stamp))

    def _run(self, goal: ServerGoal) -> None:
        self._set(goal, "executing")
        try:
            result = self._execute(goal)
            encode(result, f"{self.type_name}_Result")  # raises for another type
        except Exception:
            self._node._logger.exception("a goal of %s failed: it is aborted", self.name)
            result = goal.aborted(make(f"{self.type_name}_Result"))
        self._set(goal, goal.end)
        with self._lock:
            self._threads.discard(threading.current_thread())
        number = STATUS.index(goal.end)
        goal.response.set_result(make(f"{self.type_name}_GetResult_Response", status=number, result=result))

    def _set(self, goal: ServerGoal, status: str) -> None:
        with self._lock:
            if status in ENDED or goal.status == "accepted":
                goal.status = status
            self._publish_status()

    def _publish_status(self) -> None:
        with self._lock:
            if self._gone:
                return
            goals = [{"goal_info": _info(g), "status": STATUS.index(g.status)} for g in self._goals.values()]
            self._statuses.publish(make(STATUSES, status_list=goals))

    def _on_result(self, request: Any) -> Any:
        with self._lock:
            goal = self._goals.get(request.goal_id.uuid.tobytes())
        return make(f"{self.type_name}_GetResult_Response") if goal is None else goal.response

    def _on_cancel(self, request: Any) -> Any:
        uuid, limit = request.goal_info.goal_id.uuid.tobytes(), request.goal_info.stamp
        before = limit.sec * 1_000_000_000 + limit.nanosec
        one = any(uuid)  # without an id and a stamp, all goals; with a stamp, those accepted until then
        code, canceling = _NONE, []
        with self._lock:
            known = self._goals.get(uuid)
            wanted = [g for g in self._goals.values() if g is known or (g.stamp <= before if before else not one)]
            for goal in [g for g in wanted if g.status not in ENDED]:
                if self._cancel(goal.request):
                    goal.status = "canceling"
                    goal.canceling.set()
                    canceling.append(_info(goal))
            if not canceling:
                code = _REJECTED
                if one and known is None:
                    code = _UNKNOWN
                elif known is not None and known.status in ENDED:
                    code = _TERMINATED
            self._publish_status()
        return make(f"{CANCEL}_Response", return_code=code, goals_canceling=canceling)


def _info(goal: ServerGoal) -> dict[str, Any]:
    return {"goal_id": goal_id(goal.uuid), "stamp": stamp(goal.stamp)}
