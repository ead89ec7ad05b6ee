"""A twin's process with rclpy, driven by nodes as ROS users write them."""

from collections.abc import Callable
from typing import Any

import pytest

from robot_rl.robots import robots


def test_twin_is_heard_and_commanded(
    user: Any, twin_process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBOT_RL_BUS", "rclpy")
    panda = robots.get("panda")
    target = [q + 0.2 for q in panda.home]
    user.do(f"listener = start(StateListener('/')); commander = start(Commander('/', topic={panda.driver.command!r}))")
    with twin_process("panda", "--no-camera"):
        assert user.do("until(lambda: len(listener.states) >= 100)"), "joint states at 200 Hz"
        assert user.do("list(listener.states[-1].name)")[:7] == list(panda.joint_names)
        assert user.do("until(lambda: ('twin', '/') in listener.get_node_names_and_namespaces())")
        assert user.do("until(lambda: commander.publisher.get_subscription_count() == 1)")
        position = "listener.states[-1].position[0]"
        assert user.do(f"until(lambda: commander.send({target}) or {position} > {panda.home[0] + 0.1})")
        user.do("stop(commander)")  # the twin waits for its commander before it ends
    assert user.do("until(lambda: 'twin' not in listener.get_node_names())")
    user.do("stop(listener)")
