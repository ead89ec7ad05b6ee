"""A process that stands still is told from a policy that falls, and leaves an event."""

from __future__ import annotations

import json
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
from real.control.clock import STALL
from real.control.safety import STALE_STATE
from real.finetune import LearnerProcess
from real.launching.child import Child
from real.launching.node import NodeProcess
from real.robots.wire import LOW_STATE, layout
from real.topics import STALL_TOPIC
from real.twin import ArmTwin, QuadrupedTwin
from real.twin import base as twin_base
from real.twin.quadruped import GRAVITY
from sim.tasks import tasks

Build = Callable[..., Any]
WALK = replace(tasks.get("go2-velocity").interface, horizon=1000)
STILL = torch.zeros(1, 12)


def say_stall(node: Any) -> None:
    publisher = node.publisher("std_msgs/msg/String", STALL_TOPIC)
    assert node.wait_for(lambda: publisher.matched > 0, 30)
    publisher.publish(make("std_msgs/msg/String", data=json.dumps({"seconds": 0.054})))


@pytest.mark.parametrize("stalled", [True, False])
def test_a_stop_after_the_twin_stood_still_is_no_fall(
    topic_quadruped: Build, robot_env: Build, eventually: Build, stalled: bool
) -> None:
    robot = topic_quadruped(twin=True)
    robot.height = 0.3
    env = robot_env(WALK)
    env.reset(seed=0)
    env.step(STILL)
    notes: list[Any] = []
    env.note = lambda event, what: notes.append((event, what))
    env.loop.stop(STALE_STATE)
    if stalled:
        threading.Timer(0.05, say_stall, [robot.node]).start()
    *_, over, _ = env.step(STILL)
    assert (env.stalls, env.falls) == ((1, 0) if stalled else (0, 1))
    assert env.loop.stopped == (f"{STALE_STATE}: the twin stood still for 54 ms" if stalled else STALE_STATE)
    assert (("stall", {"process": "twin", "seconds": 0.054}) in notes) == stalled


def test_its_own_standing_still_is_noted_and_is_no_fall(topic_quadruped: Build, robot_env: Build) -> None:
    topic_quadruped(twin=True)
    env = robot_env(WALK)
    env.reset(seed=0)
    env.loop.stall = time.monotonic(), 0.07
    env.loop.stop("the guard damps the robot: silence")
    env.step(STILL)
    env.step(STILL)
    assert (env.stalls, env.falls) == (1, 0), "once for each episode"
    assert env.loop.stopped.endswith("silence: this process stood still for 70 ms")


def test_a_stop_by_a_person_or_a_limit_is_never_a_stall(topic_quadruped: Build, robot_env: Build) -> None:
    topic_quadruped(twin=True)
    env = robot_env(WALK)
    env.reset(seed=0)
    env.loop.stall = time.monotonic(), 0.07
    env.loop.stop("tilt")
    env.step(STILL)
    assert (env.stalls, env.falls) == (0, 1)


def test_a_late_tick_is_an_event(topic_robot: Build, robot_env: Build, eventually: Build, monkeypatch: Any) -> None:
    topic_robot()
    env = robot_env(tasks.get("panda-lift").interface)
    notes: list[Any] = []
    env.note = lambda event, what: notes.append((event, what))
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
def arm_twin(private_domain: int) -> Any:
    with open_node("twin") as node, open_node("policy") as policy:
        yield ArmTwin(node, tasks.get("panda-lift"), cameras=False), policy


def test_a_twin_that_stands_still_says_for_how_long(arm_twin: Any, eventually: Build, monkeypatch: Any) -> None:
    twin, policy = arm_twin
    heard: list[float] = []
    listener = policy.subscribe(
        "std_msgs/msg/String", STALL_TOPIC, qos.DEFAULT, lambda s: heard.append(json.loads(s.msg.data)["seconds"])
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


def test_a_twin_ends_after_what_commands_it_and_at_once_when_told_twice(
    arm_twin: Any, eventually: Build, monkeypatch: Any
) -> None:
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


def test_a_low_state_has_what_a_robot_at_rest_reports(private_domain: int, eventually: Build) -> None:
    with open_node("twin") as node, open_node("policy") as policy:
        twin = QuadrupedTwin(node, tasks.get("go2-velocity"), cameras=False)
        states = policy.subscribe(LOW_STATE, "lowstate")  # reliable
        assert policy.wait_for(lambda: states.matched == 1 == twin.states.matched, 30)
        measured = []
        for count in range(100):
            twin.tick(count)
            assert states.wait(30, after=count)
            state = layout(LOW_STATE).open(states.latest.raw)  # type: ignore[union-attr]
            assert state is not None
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


def test_the_launcher_and_the_session_notice_a_process_that_was_suspended(tmp_path: Any, eventually: Build) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = Child(NodeProcess("twin", ("twin",)), sleep, dict(os.environ), lambda *_: None)
    try:
        assert not child.resumed()
        suspend(child.pid)
        eventually(child.resumed)
        assert not child.resumed(), "once each time"
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
