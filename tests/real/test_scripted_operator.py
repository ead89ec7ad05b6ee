"""Scripted operators of a walking robot and of an arm."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from real.bus import Node, make, open_node, qos
from real.episode import standing
from real.teleop import OperatorInput, stream
from real.teleop.commands import RELEASED
from real.teleop.scripted_arm import ArmOperator
from real.teleop.scripted_walker import AGAIN, LIE, PRESS, RESET, ROUTE, STOP, Walker
from real.topics import EPISODE_TOPIC, STATUS, Episode
from robot_rl.interface.pipeline import COMMAND_RAMP, Pipeline
from robot_rl.operators.scripted import OperatorConfig
from sim.tasks import tasks

LIFT = tasks.get("panda-lift")
WALK = tasks.get("go2-velocity").interface
LENGTH = sum(seconds for seconds, _, _ in ROUTE)
Build = Callable[..., Any]


@pytest.fixture
def node(nodes: Build) -> Node:
    return nodes("bystander")


def test_route_stop_and_reset(node: Node, eventually: Build) -> None:
    now, done = [0.0], list[str]()
    walker = Walker(node, done.append, clock=lambda: now[0])
    announcer = node.publisher(STATUS, EPISODE_TOPIC, qos.LATCHED)

    def phase(episode: int, name: str) -> None:
        announcer.publish(Episode(episode, name).message())
        eventually(lambda: walker._now[:2] == (episode, name))

    def after(seconds: float) -> Any:
        now[0] = walker._now[2] + seconds
        return walker.read()

    assert walker.read() == RELEASED, "before there is an episode"
    phase(0, "running")
    begin = 0.0
    for seconds, _, inputs in ROUTE:
        assert after(begin + 0.01) == inputs == after(begin + seconds - 0.01)
        begin += seconds
    assert {tuple(abs(m) > 0.5 for m in inputs.motion) for *_, inputs in ROUTE} == {
        (True, False, False), (False, True, False), (False, False, True)
    }, "forward, sideways, turning"  # fmt: skip
    assert after(LENGTH + 0.01) == STOP
    phase(0, "failure")
    assert after(0.0) == RELEASED
    phase(1, "resetting")
    pressed = {t: after(t) == RESET for t in (0.0, LIE - 0.1, LIE, LIE + PRESS + 0.1, LIE + AGAIN + 0.1)}
    assert list(pressed.values()) == [False, False, True, False, True]
    phase(1, "running")
    assert after(0.01) == ROUTE[0][2] and after(LENGTH + 0.01) == RELEASED, "it stops in the first episode only"
    phase(2, "resetting")
    assert after(LIE) == RELEASED, "no stop was pressed"
    assert done == [d for _, d, _ in ROUTE] + ["presses stop", "presses reset", "presses reset", ROUTE[0][1], "lets go"]
    walker.close()


@contextmanager
def streaming(node: Node, operator: Any, robot: str) -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=stream, args=(node, operator, robot, 30.0, lambda s: signal.SIGTERM * end.wait(s)))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_robot_is_steered_stopped_and_stands_up_again(
    nodes: Build, node: Node, topic_quadruped: Build, robot_env: Build, monkeypatch: Any, eventually: Build
) -> None:
    monkeypatch.setattr(standing, "RISE", 0.4)
    robot, action = topic_quadruped(), torch.zeros(1, 12)
    walker = Walker(node, lambda _text: None, route=((2 * COMMAND_RAMP, "legged", ROUTE[0][2]),), lie=0.3)
    with streaming(node, walker, "go2"):
        env = robot_env(replace(WALK, horizon=200), OperatorInput(nodes("listener"), "go2", legged=True))
        env.reset(seed=0)
        commanded = 0.0
        while not env.loop.stopped:
            *_, terminated, truncated, infos = env.step(action)
            commanded = max(commanded, float(env.command[0, 0]))
            assert env.steps < 150
        assert commanded == pytest.approx(0.8) and env.loop.stopped == "operator" and not infos["success"]
        assert bool(truncated) and not bool(terminated), "although the damped legs fold"
        eventually(lambda: robot.is_damped)
        env.reset(seed=1)
        assert not env.loop.stopped and not robot.is_damped
        while float(env.command[0, 0]) < 0.7:
            env.step(action)
            assert env.steps < 100 and not env.loop.stopped
        env.close()


# ---- an arm ------------------------------------------------------------------------------------------------------
def test_stalled_policy_is_corrected_towards_the_object(robot: Any, robot_env: Build) -> None:
    pipeline = Pipeline(LIFT.interface)
    with open_node("operator") as node, open_node("listener") as listener:
        operator = ArmOperator(node, pipeline, LIFT.make_expert(pipeline, 1, "STEADY", 0))
        assert operator.read() == RELEASED, "no episode runs"
        with closing(operator), streaming(node, operator, "panda"):
            env = robot_env(replace(LIFT.interface, horizon=200), OperatorInput(listener, "panda"))
            env.reset(seed=0)
            begin = robot.position.copy()
            interventions: list[bool] = []
            while sum(interventions) < 20:
                *_, infos = env.step(torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
                interventions.append(bool(infos["intervention"]))
                assert len(interventions) < 150
            assert not any(interventions[:5]), "it observes first"
            offset = env.state.objects["cube"][0, :3] - env.state.tool_position[0]
            first = env.pipeline.kinematics.forward(torch.from_numpy(begin).float()[None])[0][0]
            assert offset.norm() < (env.state.objects["cube"][0, :3] - first).norm() - 0.05


def test_operator_pushes_harder_while_the_arm_stands_and_marks_success(
    robot: Any, node: Node, eventually: Build
) -> None:
    """Friction holds an arm a little before its goal; success is judged by the true pose, not the tracker's."""
    pipeline = Pipeline(LIFT.interface)
    with open_node("operator") as mine:
        demonstrator = LIFT.make_expert(pipeline, 1, "STEADY", 0)
        always = OperatorConfig("random", rate=1.0, length=10_000, speed=0.2)
        with closing(ArmOperator(mine, pipeline, demonstrator, config=always)) as operator:
            announcer = node.publisher(STATUS, EPISODE_TOPIC, qos.LATCHED)
            announcer.publish(Episode(0, "running").message())
            eventually(lambda: operator.read().held)
            sizes = [max(map(abs, operator.read().motion)) for _ in range(40)]
            assert max(sizes[-5:]) > 2 * max(sizes[:3]) and max(sizes) <= 1.0
            assert not operator.read().success
            truth = node.publisher("geometry_msgs/msg/PoseStamped", "twin/cube/pose", qos.SENSOR)
            high = make(truth.type_name, pose={"position": {"x": 0.45, "y": 0.0, "z": 0.3}})
            eventually(lambda: truth.publish(high) and operator.read().success)
