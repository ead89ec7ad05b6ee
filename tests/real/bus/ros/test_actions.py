"""Actions of our node with rclpy, against rclpy's own servers and clients."""

from collections.abc import Iterator
from typing import Any

import pytest

from real.bus import BusError, Node, make, open_node

pytest.importorskip("rclpy")
pytest.importorskip("example_interfaces.action", reason="needs the package example_interfaces, which is not in wheels")
WAIT = 20.0  # longest wait for discovery and responses, s
FIB = "example_interfaces/action/Fibonacci"


@pytest.fixture
def ours(user: Any) -> Iterator[Node]:
    user.do("import user_actions as actions")
    with open_node("here", "/arm", backend="rclpy") as node:
        yield node


def order(number: int) -> Any:
    return make(f"{FIB}_Goal", order=number)


def test_our_client_and_a_plain_server(ours: Node, user: Any) -> None:
    user.do("counter = actions.start(actions.Counter())")
    client = ours.action_client(FIB, "fib")
    heard: list[list[int]] = []
    goal = client.send_goal(order(4), lambda message: heard.append(message.sequence.tolist()), WAIT)
    status, result = goal.result(WAIT)
    assert (status, result.sequence.tolist()) == ("succeeded", [0, 1, 1, 2, 3])
    assert ours.wait_for(lambda: len(heard) == 3 and goal.status == "succeeded", WAIT)
    assert heard == [[0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2, 3]]
    with pytest.raises(BusError, match="rejected"):
        client.send_goal(order(10), timeout=WAIT).result(WAIT)
    endless = client.send_goal(order(9), timeout=WAIT)
    assert endless.cancel(WAIT) and endless.result(WAIT)[0] == "canceled"
    user.do("actions.stop(counter)")


def test_our_server_and_a_plain_client(ours: Node, user: Any) -> None:
    def execute(goal: Any) -> Any:
        goal.feedback(make(f"{FIB}_Feedback", sequence=[goal.request.order]))
        if goal.request.order == 9:
            assert goal.canceling.wait(WAIT)
            return goal.canceled(make(f"{FIB}_Result", sequence=[9]))
        return make(f"{FIB}_Result", sequence=[1, 2])

    ours.action_server(FIB, "fib", execute, accept=lambda goal: goal.order < 10)
    user.do("asker = actions.start(actions.Asker())")
    assert user.do("asker.ask(3)") and user.do("asker.result()") == (4, [1, 2])
    assert not user.do("asker.ask(10)")
    assert user.do("asker.ask(9)") and user.do("asker.cancel()") == (0, 1) and user.do("asker.result()") == (5, [9])
    assert user.do("actions.until(lambda: asker.heard == [[3], [9]])")
    user.do("actions.stop(asker)")
