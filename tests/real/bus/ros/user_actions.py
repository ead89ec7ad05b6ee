"""Server and client of an action as ROS users write them, with rclpy's own classes."""

import threading
import time

from example_interfaces.action import Fibonacci
from rclpy.action import ActionClient, ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from user import until

executor = MultiThreadedExecutor(3)
threading.Thread(target=executor.spin, daemon=True).start()


def start(node):
    executor.add_node(node)
    return node


def stop(node):
    node.end.destroy()
    executor.remove_node(node)
    node.destroy_node()


class Counter(Node):
    """Server of `fib`: it rejects orders above 9, and order 9 runs until it is canceled."""

    def __init__(self):
        super().__init__("counter", namespace="/arm")
        self.end = ActionServer(
            self, Fibonacci, "fib", self.execute, callback_group=ReentrantCallbackGroup(),
            goal_callback=lambda goal: GoalResponse.REJECT if goal.order > 9 else GoalResponse.ACCEPT,
            cancel_callback=lambda goal: CancelResponse.ACCEPT,
        )  # fmt: skip

    def execute(self, goal):
        sequence = [0, 1]
        for _ in range(goal.request.order - 1):
            sequence.append(sequence[-2] + sequence[-1])
            goal.publish_feedback(Fibonacci.Feedback(sequence=sequence))
        if goal.request.order == 9:
            while not goal.is_cancel_requested:
                time.sleep(0.002)
            goal.canceled()
        else:
            goal.succeed()
        return Fibonacci.Result(sequence=sequence)


class Asker(Node):
    """Client of `fib`."""

    def __init__(self):
        super().__init__("asker", namespace="/arm")
        self.end = ActionClient(self, Fibonacci, "fib")
        self.heard = []

    def ask(self, order):
        """Send a goal; return whether it is accepted."""
        assert until(self.end.server_is_ready)
        goal = Fibonacci.Goal(order=order)
        sent = self.end.send_goal_async(goal, lambda m: self.heard.append(list(m.feedback.sequence)))
        assert until(sent.done)
        self.goal = sent.result()
        return self.goal.accepted

    def result(self):
        answer = self.goal.get_result_async()
        assert until(answer.done)
        return answer.result().status, list(answer.result().result.sequence)

    def cancel(self):
        answer = self.goal.cancel_goal_async()
        assert until(answer.done)
        return answer.result().return_code, len(answer.result().goals_canceling)
