"""A stalled process is an event and no fall of the policy."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import make, open_node, qos
from real.control import loop as loop_module
from real.control.stop import STALE_STATE
from real.control.timing import STALL
from real.drivers.wire import LOW_STATE, layout
from real.episode import standing
from real.launching.child import Child
from real.launching.node import NodeProcess
from real.sessions.finetune import LearnerProcess
from real.topics import NUMBER, STALL_TOPIC
from real.twin import ArmTwin, QuadrupedTwin
from real.twin import base as twin_base
from real.twin.quadruped import GRAVITY
from sim.tasks import tasks

Build = Callable[..., Any]
WALK = replace(tasks.get("go2-velocity").interface, horizon=1000)
STILL = torch.zeros(1, 12)


def say_stall(node: Any) -> None:
    publisher = node.publisher(NUMBER, STALL_TOPIC)
    assert node.wait_for(lambda: publisher.matched > 0, 30)
    publisher.publish(make(NUMBER, data=0.054))


@pytest.fixture
def walking(topic_quadruped: Build, robot_env: Build, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return a twin and the environment of its running episode."""
    monkeypatch.setattr(standing, "RISE", 0.4)
    robot = topic_quadruped(twin=True)
    robot.height = 0.3
    env = robot_env(WALK)
    env.reset(seed=0)
    env.step(STILL)
    return robot, env


@pytest.mark.parametrize("stalled", [True, False])
def test_stop_after_a_stall_of_the_twin_is_no_fall(walking: tuple[Any, Any], stalled: bool) -> None:
    robot, env = walking
    notes: list[Any] = []
    env.stream.on_event(lambda event: notes.append((event.name, event.what)))
    env.loop.stop(STALE_STATE)
    if stalled:
        threading.Timer(0.05, say_stall, [robot.node]).start()
    *_, over, _ = env.step(STILL)
    assert (env.stalls, env.falls) == ((1, 0) if stalled else (0, 1))
    assert env.loop.stopped == (f"{STALE_STATE}: the twin stood still for 54 ms" if stalled else STALE_STATE)
    assert (("stall", {"process": "twin", "seconds": 0.054}) in notes) == stalled


@pytest.mark.parametrize(
    ("reason", "stalls", "cause"),
    [("the guard damps the robot: silence", 1, ": this process stood still for 70 ms"), ("tilt", 0, "")],
)
def test_own_stall_explains_a_silence_but_not_a_limit(walking: Any, reason: str, stalls: int, cause: str) -> None:
    _, env = walking
    env.loop.stall = time.monotonic(), 0.07
    env.loop.stop(reason)
    env.step(STILL)
    assert (env.stalls, env.falls) == (stalls, 1 - stalls) and env.loop.stopped == reason + cause


def test_late_tick_is_an_event(robot: Any, robot_env: Build, eventually: Build, monkeypatch: Any) -> None:
    env = robot_env(tasks.get("panda-lift").interface)
    notes: list[Any] = []
    env.stream.on_event(lambda event: notes.append((event.name, event.what)))
    monkeypatch.setattr(loop_module, "STALL", STALL)
    tick = env.loop._tick

    def slow(now: float) -> None:
        tick(now)
        monkeypatch.setattr(env.loop, "_tick", tick)
        threading.Event().wait(0.1)

    monkeypatch.setattr(env.loop, "_tick", slow)
    eventually(lambda: any(event == "stall" and what["seconds"] > 0.08 for event, what in notes))
    assert env.loop.events.counts["stood still"] >= 1 and env.loop.stall[1] > 0.025


@pytest.fixture
def arm_twin(nodes: Build) -> Any:
    return ArmTwin(nodes("twin"), tasks.get("panda-lift"), cameras=False), nodes("policy")


def test_twin_publishes_the_duration_of_its_stall(arm_twin: Any, eventually: Build, monkeypatch: Any) -> None:
    twin, policy = arm_twin
    heard: list[float] = []
    listener = policy.subscribe(
        NUMBER, STALL_TOPIC, qos.DEFAULT, lambda s: heard.append(float(s.msg.data))
    )
    assert policy.wait_for(lambda: listener.matched == 1, 30)
    ticks: list[int] = []
    tick = twin.tick

    def slow(count: int) -> None:
        ticks.append(count)
        tick(count)
        if count == 20:
            threading.Event().wait(0.12)

    monkeypatch.setattr(twin, "tick", slow)
    thread = threading.Thread(target=twin.run)
    thread.start()
    eventually(lambda: any(seconds > 0.1 for seconds in heard))
    twin.close()
    thread.join()
    assert twin.stalls >= 1 and "stood still" in twin.summary()


def test_twin_drains_until_commands_end_or_a_second_signal(arm_twin: Any, eventually: Build, monkeypatch: Any) -> None:
    twin, policy = arm_twin
    command = policy.publisher("std_msgs/msg/Float64MultiArray", twin.command.topic, qos.COMMAND)
    assert policy.wait_for(lambda: command.matched == 1, 30)
    monkeypatch.setattr(twin_base, "DRAIN", 1000.0)
    thread = threading.Thread(target=twin.run)
    thread.start()
    assert twin.drain()
    states = policy.subscribe(twin.states.type_name, twin.states.topic)  # reliable, as most tools
    assert states.wait(30) and states.wait(30) and thread.is_alive()
    command.close()
    thread.join(30)
    assert not thread.is_alive()
    again = threading.Thread(target=twin.run)
    twin._draining, command = math.inf, policy.publisher(command.type_name, twin.command.topic, qos.COMMAND)
    assert policy.wait_for(lambda: command.matched == 1, 30)
    again.start()
    twin.drain()
    twin.drain()
    again.join(30)
    assert not again.is_alive()


def test_low_state_of_a_robot_at_rest(private_domain: int, eventually: Build) -> None:
    with open_node("twin") as node, open_node("policy") as policy:
        twin = QuadrupedTwin(node, tasks.get("go2-velocity"), cameras=False)
        states = policy.subscribe(LOW_STATE, "lowstate")  # reliable
        assert policy.wait_for(lambda: states.matched == 1 == twin.states.matched, 30)
        measured = []
        for count in range(100):
            twin.tick(count)
            assert states.wait(30, after=count)
            state = layout(LOW_STATE).open(states.latest.raw)  # type: ignore[union-attr]
            measured.append(state["imu_state"]["accelerometer"].copy())
        assert np.abs(np.mean(measured, 0) - [0.0, 0.0, GRAVITY]).max() < 0.6
        assert np.abs(state["imu_state"]["rpy"][:2]).max() < 0.2
        assert state["bms_state"]["soc"] == 90 and 24 < state["power_v"] < 34
        assert (state["motor_state"]["temperature"][:12] == 35).all() and state["imu_state"]["temperature"] == 45


def suspend(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT) is None:
        pass
    os.kill(pid, signal.SIGCONT)


def test_suspended_child_and_learner_are_noticed(tmp_path: Any, eventually: Build) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = Child(NodeProcess("twin", ("twin",)), sleep, dict(os.environ), lambda *_: None)
    try:
        assert not child.resumed()
        suspend(child.pid)
        eventually(child.resumed)
        assert not child.resumed()
    finally:
        child.kill()
        child.close()
    assert not child.resumed()
    notes: list[Any] = []
    with LearnerProcess(sleep, tmp_path / "weights") as learner:
        learner.note = lambda event, what: notes.append((event, what))
        learner.tend()
        assert not notes and learner.process is not None
        suspend(learner.process.pid)
        eventually(lambda: (learner.tend(), notes)[1])
    assert notes == [("stall", {"process": "learner"})]
