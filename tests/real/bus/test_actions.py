"""Actions over DDS, in one process and between two."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from real.bus import BusError, Node, make, open_node, qos, type_hash

WAIT = 10.0  # longest wait for discovery and responses, s
FIB = "example_interfaces/action/Fibonacci"
SERVE = """
from real.bus import *
import threading
node = open_node('there', '/arm')
go = threading.Event()
def execute(goal):
    sequence = [0, 1]
    for _ in range(goal.request.order - 1):
        sequence.append(sequence[-2] + sequence[-1])
        goal.feedback(make('example_interfaces/action/Fibonacci_Feedback', sequence=sequence))
    go.wait(10)
    return make('example_interfaces/action/Fibonacci_Result', sequence=sequence)
server = node.action_server('example_interfaces/action/Fibonacci', 'fib', execute, accept=lambda g: g.order < 50)
"""


@pytest.fixture
def node(loopback: int) -> Iterator[Node]:
    with open_node("here", "/arm") as opened:
        yield opened


def order(number: int) -> Any:
    return make(f"{FIB}_Goal", order=number)


def sequence(*numbers: int, part: str = "Result") -> Any:
    return make(f"{FIB}_{part}", sequence=numbers)


def until_canceled(goal: Any) -> Any:
    assert goal.canceling.wait(WAIT)
    return goal.canceled(sequence(7))


def test_goal_of_another_process_gives_feedback_and_result(node: Node, peer: Any) -> None:
    peer.do(SERVE)
    client = node.action_client(FIB, "fib")
    heard: list[list[int]] = []
    goal = client.send_goal(order(4), lambda message: heard.append(message.sequence.tolist()), WAIT)
    assert goal.accepted
    assert node.wait_for(lambda: goal.status == "executing", WAIT)
    second = client.send_goal(order(3), timeout=WAIT)  # one goal at a time
    with pytest.raises(BusError, match="has rejected this goal"):
        second.result(WAIT)
    with pytest.raises(BusError, match="has not ended within 0.01 s"):
        goal.result(0.01)
    peer.do("go.set()")
    status, result = goal.result(WAIT)
    assert (status, result.sequence.tolist()) == ("succeeded", [0, 1, 1, 2, 3])
    assert heard == [[0, 1, 1], [0, 1, 1, 2], [0, 1, 1, 2, 3]]
    assert goal.result(0.0)[0] == "succeeded"
    assert not client.send_goal(order(50), timeout=WAIT).accepted
    assert not goal.cancel(WAIT), "it has ended"


def test_cancel_and_its_refusal(node: Node) -> None:
    node.action_server(FIB, "fib", until_canceled, cancel=lambda goal: goal.order > 1, parallel=2)
    client = node.action_client(FIB, "fib")
    stubborn, goal = (client.send_goal(order(k), timeout=WAIT) for k in (1, 2))
    assert not stubborn.cancel(WAIT)
    assert goal.cancel(WAIT)
    status, result = goal.result(WAIT)
    assert (status, result.sequence.tolist()) == ("canceled", [7])
    node.close()  # cancels the other, and waits for it


def test_all_goals_are_canceled_by_the_empty_id(node: Node) -> None:
    server = node.action_server(FIB, "fib", until_canceled, parallel=3)
    client = node.action_client(FIB, "fib")
    goals = [client.send_goal(order(k), timeout=WAIT) for k in range(3)]
    first = min(goal.stamp for goal in server._goals.values())
    cancel = node.client("action_msgs/srv/CancelGoal", "fib/_action/cancel_goal")
    sec, nanosec = divmod(first, 10**9)
    stamped = {"stamp": {"sec": sec, "nanosec": nanosec}}
    for info, count, code in ((stamped, 1, 0), ({}, 2, 0), ({"goal_id": {"uuid": bytes(15) + b"x"}}, 0, 2)):
        response = cancel.call(make("action_msgs/srv/CancelGoal_Request", goal_info=info), WAIT)
        assert (len(response.goals_canceling), response.return_code) == (count, code)
        if count == 1:
            assert goals[0].result(WAIT)[0] == "canceled"
    assert [goal.result(WAIT)[0] for goal in goals] == ["canceled"] * 3
    ended = {"goal_id": {"uuid": goals[0].uuid}}
    assert cancel.call(make("action_msgs/srv/CancelGoal_Request", goal_info=ended), WAIT).return_code == 3


def test_failed_and_aborted_goals(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    def execute(goal: Any) -> Any:
        if goal.request.order == 0:
            raise ZeroDivisionError("bad goal")
        return goal.aborted(sequence(3)) if goal.request.order == 1 else make("std_msgs/msg/Bool")

    node.action_server(FIB, "fib", execute, parallel=3)
    client = node.action_client(FIB, "fib")
    ends = [client.send_goal(order(k), timeout=WAIT).result(WAIT) for k in range(3)]
    assert [status for status, _ in ends] == ["aborted"] * 3
    assert [result.sequence.tolist() for _, result in ends] == [[], [3], []]
    assert "bad goal" in caplog.text and "std_msgs/msg/Bool" in caplog.text


def test_status_is_latched_and_listed(node: Node) -> None:
    node.action_server(FIB, "fib", lambda goal: sequence(1))
    goal = node.action_client(FIB, "fib").send_goal(order(1), timeout=WAIT)
    assert goal.result(WAIT)[0] == "succeeded"
    with open_node("late", "/arm") as late:
        status = late.subscribe("action_msgs/msg/GoalStatusArray", "fib/_action/status", qos.LATCHED)
        assert status.wait(WAIT, after=0)
        (listed,) = status.latest.msg.status_list
        assert (listed.status, listed.goal_info.goal_id.uuid.tobytes()) == (4, goal.uuid)
        assert late.action_client(FIB, "fib")._goals.wait(WAIT)


def test_killed_server_fails_the_result(node: Node, peer: Any) -> None:
    peer.do(SERVE)
    goal = node.action_client(FIB, "fib").send_goal(order(2), timeout=WAIT)
    done: list[str] = []

    def ask() -> None:
        with pytest.raises(BusError, match="fib/_action/get_result: its server left"):
            goal.result(WAIT)
        done.append("refused")

    thread = threading.Thread(target=ask)
    thread.start()
    assert node.wait_for(lambda: goal.status == "executing", WAIT)
    peer.process.kill()
    thread.join(WAIT)
    assert done == ["refused"]


def test_absent_server_unknown_goal_and_wrong_types(node: Node, eventually: Callable[..., Any]) -> None:
    client = node.action_client(FIB, "fib")
    with pytest.raises(BusError, match=r"no server of action /arm/fib \(example_interfaces/action/Fibonacci\)"):
        client.send_goal(order(1), timeout=0.01)
    server = node.action_server(FIB, "fib", lambda goal: sequence(1))
    goal = client.send_goal(order(1), timeout=WAIT)
    eventually(lambda: goal.status == "succeeded")
    server.close()
    server.close()
    node.action_server(FIB, "fib", lambda goal: sequence(1))
    assert client.wait(WAIT)
    with pytest.raises(BusError, match="does not know this goal any more"):
        goal.result(WAIT)
    with pytest.raises(BusError, match="cannot publish"):
        client.send_goal(sequence(1), timeout=WAIT)
    with pytest.raises(BusError, match="Fibonaci_FeedbackMessage"):
        node.action_client("example_interfaces/action/Fibonaci", "fib")
    client.close()
    client.close()


@pytest.mark.parametrize(
    ("part", "digest"),
    [  # of ROS's own generator, rosidl_generator_type_description 4.6.6
        ("Goal", "226cb437e4355dcd3e914f930382a3b0cc1da81545bd319ed554e95a03255f51"),
        ("Result", "fea81394f25aa4502217953f1a021fb750e79c10bbd43f13dd94632da6569649"),
        ("SendGoal_Request", "3d088942b413247db536576f0286768c6be8fcd5d0c9a5d544f359fba090a238"),
        ("SendGoal_Response", "d8c07bb3d5b766fe4b43159c9a5222af5214e2fcc29229b991d826166c512be1"),
        ("GetResult_Request", "c8a4f5e7d13b81286ee1043e2ecd084281cecf1ff06aaa799464f5f15479f003"),
        ("GetResult_Response", "6021dc98ab9b4bbe395e48aa4de81ee5f68eb570f88358affcc648146668b24f"),
        ("FeedbackMessage", "c1de71afd52e49a89c53d8262366884185bc0a02f78ce051c4e46b0a7fe59bb2"),
    ],
)
def test_hashes_of_derived_types(part: str, digest: str) -> None:
    assert type_hash(f"{FIB}_{part}") == f"RIHS01_{digest}"
