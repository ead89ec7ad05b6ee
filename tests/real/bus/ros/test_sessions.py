"""What a session publishes and hears beside its robot, with both backends and a user's plain rclpy nodes."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from real import clock
from real.bus import Node, qos
from real.bus.dds import DdsNode
from real.control.stop import E_STOP
from real.control.stop_topic import StopTopic
from real.episode.display import Display
from real.sessions.lifecycle import Lifecycle
from real.topics import DIAGNOSTICS, DIAGNOSTICS_TOPIC, diagnostics, status
from robot_rl.interface.driver import SafetyConfig
from robot_rl.robots.panda import PANDA


def test_description_reaches_a_late_viewer(node: Node, user: Any) -> None:
    calls: list[Any] = []
    rig: Any = SimpleNamespace(node=node, pipeline=SimpleNamespace(robot=PANDA), each_period=calls)
    Display(rig)
    user.do("viewer = start(Describer(qos=profile(depth=1, durability=1)))")
    assert user.do("until(lambda: viewer.texts and 'joint7' in viewer.texts[0])")
    # The wheels have no tf2_msgs; our DDS knows it.
    assert bool(calls) == (isinstance(node, DdsNode) or importlib.util.find_spec("tf2_msgs") is not None)
    user.do("stop(viewer)")


def test_health_reaches_a_viewer(node: Node, user: Any) -> None:
    user.do("viewer = start(Health())")
    publisher = node.publisher(DIAGNOSTICS, DIAGNOSTICS_TOPIC, qos.VIEWER)
    assert node.wait_for(lambda: publisher.matched > 0, 30)
    publisher.publish(diagnostics(status("here: robot", 2, "stopped: test", {"rejected": 1})))
    assert user.do("until(lambda: viewer.heard and viewer.heard[-1] == ('here: robot', b'\\x02', 'stopped: test'))")
    user.do("stop(viewer)")


def test_a_ros_users_manager_activates_a_session(node: Node, user: Any) -> None:
    if isinstance(node, DdsNode):
        pytest.skip("services do not cross DDS vendors; test_lifecycle has our own bus")
    life = Lifecycle(node)
    life.done("configure")
    user.do("manager = start(Manager())")
    assert user.do("until(manager.changer.service_is_ready) and until(manager.getter.service_is_ready)")
    assert user.do("manager.state()") == "inactive"
    user.do("manager.change(Transition.TRANSITION_ACTIVATE)")
    assert life.wait() == "activate"
    life.done("activate")
    assert user.do("manager.changed()") and user.do("manager.state()") == "active"
    assert user.do("until(lambda: 'active' in manager.events)")
    user.do("stop(manager)")


def test_a_ros_users_button_stops_and_its_silence_does(node: Node, user: Any, eventually: Any) -> None:
    stopped: list[str] = []
    loop: Any = SimpleNamespace(stop=stopped.append, note=lambda *_: None, safety=SafetyConfig())
    button = StopTopic(node, loop)
    user.do("button = start(Button())")
    eventually(lambda: button.reason(clock.now() + 1.0), "heard, and it would be missed")
    assert not stopped
    user.do("button.press(True)")
    eventually(lambda: E_STOP in stopped)
    assert button.reason(clock.now()) == E_STOP
    user.do("stop(button)")
