"""Lifecycle of a session: loading never moves, activation does, and another node may ask for both."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from real import clock
from real.bus import Node, make, open_node
from real.bus.names import BusError
from real.recording.session import VideoRecorder
from real.sessions.deployment import Deployment
from real.sessions.lifecycle import Lifecycle, Requested
from real.twin.composed import composed_twin
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots.panda import PANDA
from robot_rl.training.run import Run
from sim.tasks import tasks

LIFT = tasks.get("panda-lift")
Build = Callable[..., Any]


class Manager:
    """Node that reads and changes the state of `/deploy`, as `ros2 lifecycle` does."""

    def __init__(self, node: Node):
        self.events: list[str] = []
        self._node = node
        self.clients = {
            name: node.client(f"lifecycle_msgs/srv/{name}", f"/deploy/{topic}")
            for name, topic in (("GetState", "get_state"), ("ChangeState", "change_state"),
                                ("GetAvailableTransitions", "get_available_transitions"))
        }  # fmt: skip
        node.subscribe(
            "lifecycle_msgs/msg/TransitionEvent", "/deploy/transition_event",
            callback=lambda s: self.events.append(s.msg.transition.label),
        )  # fmt: skip

    def _call(self, name: str, timeout: float = 60.0, **fields: Any) -> Any:
        return self.clients[name].call(make(f"lifecycle_msgs/srv/{name}_Request", **fields), timeout)

    @property
    def state(self) -> str:
        return str(self._call("GetState").current_state.label)

    @property
    def transitions(self) -> list[str]:
        return [d.transition.label for d in self._call("GetAvailableTransitions").available_transitions]

    def set(self, label: str = "", number: int = 0, timeout: float = 60.0) -> bool:
        return bool(self._call("ChangeState", timeout, transition={"id": number, "label": label}).success)


@pytest.fixture
def manager(nodes: Build) -> Manager:
    return Manager(nodes("manager"))


def test_only_possible_transitions_are_accepted(nodes: Build, manager: Manager, eventually: Build) -> None:
    life = Lifecycle(nodes("deploy"))
    assert manager.state == "unconfigured" and manager.transitions == [] and not manager.set("activate")
    life.done("configure")
    assert manager.state == "inactive" and manager.transitions == ["activate", "shutdown"]
    assert not manager.set("deactivate") and not manager.set("dance") and not manager.set(number=99)
    asking = threading.Thread(target=lambda: answers.append(manager.set(number=3)))
    answers: list[bool] = []
    asking.start()
    assert life.wait() == "activate" and manager.state == "inactive", "the session does it"
    assert not manager.set("shutdown"), "one after the other"
    life.check()  # an inactive session is not interrupted
    life.done("activate")
    asking.join(30)
    assert answers == [True] and manager.state == "active" and manager.transitions == ["deactivate", "shutdown"]
    with pytest.raises(BusError, match="did not answer"):
        manager.set("deactivate", timeout=0.2)
    with pytest.raises(Requested, match="deactivate"):
        life.check()
    life.refuse()
    life.end()
    assert manager.state == "finalized" and manager.transitions == []
    eventually(lambda: manager.events == ["configure", "activate", "shutdown"])


@pytest.fixture
def deployment(private_domain: int, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A policy that moves forward, on a twin in this process; it waits for its activation."""
    pipeline = Pipeline(LIFT.interface)
    policy = FeedforwardPolicy(Size(pipeline.observer.spec.size, 4), FeedforwardConfig(hidden=(4,)))
    with torch.no_grad():
        for weight in policy.actor.parameters():
            weight.zero_()
        policy.actor[-1].bias.copy_(torch.tensor([0.3, 0.0, 0.0, 0.0]))
    bundle = Bundle(policy, LIFT.interface, PANDA.fingerprint())
    waits = ["--ros-args", "-p", "autostart:=false"]
    with (
        Run(tmp_path / "run", {}) as run,
        composed_twin(LIFT, cameras=False) as twin,
        open_node("deploy", ros_args=waits) as node,
    ):
        session = Deployment(run, node, bundle, LIFT.interface, "receding", film=VideoRecorder(0))
        yield SimpleNamespace(session=session, twin=twin)
        session.close()


@pytest.mark.usefixtures("short_bare_loop")
def test_deactivated_session_stops_moving_and_goes_on_with_the_same_episode(
    deployment: Any, manager: Manager, eventually: Build
) -> None:
    session, twin = deployment.session, deployment.twin
    said: dict[str, Any] = {}

    def manage() -> None:
        said["first"] = manager.state, session.env.loop.armed
        said["activated"] = manager.set("activate")
        eventually(lambda: session.env.steps > 10)
        said["deactivated"] = manager.set("deactivate")
        said["then"] = manager.state, session.env.loop.armed, clock.now()
        before = twin.engine.joint_state()[0].clone()
        said["rests"] = float((twin.engine.joint_state()[0] - before).abs().max())
        said["again"] = manager.set("activate")

    person = threading.Thread(target=manage)
    person.start()
    session.activate()
    seeds: list[int] = []
    session.env.stream.on_event(lambda event: seeds.append(session.env.seed) if event.what == "running" else None)
    session.run(2, 7, lambda *_: None)
    person.join(60)
    assert said["first"] == ("inactive", False) and said["then"][:2] == ("inactive", False)
    assert said["activated"] and said["deactivated"] and said["again"] and said["rests"] < 1e-3
    assert seeds == [7, 7, 8] and session.result.steps == [100, 100] and not session.ended
    assert np.isfinite(session.result.returns).all()


@pytest.mark.usefixtures("short_bare_loop")
def test_shut_down_before_its_activation(deployment: Any, manager: Manager) -> None:
    asking = threading.Thread(target=lambda: manager.set("shutdown"))
    asking.start()
    with pytest.raises(Requested, match="shutdown"):
        deployment.session.activate()
    deployment.session.close()
    asking.join(30)
    assert manager.state == "finalized" and not asking.is_alive()
