"""Other publishers and subscribers on the robot's topics, and joint states that jump."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import Stamped, encode, make, open_node, qos
from real.drivers import open_driver
from real.drivers.driver import Driver
from real.drivers.state import MANY, JumpCheck, NotReady
from real.recording.journal import Journal
from real.teleop.commands import OperatorInput
from robot_rl.robots.go2 import GO2
from robot_rl.robots.panda import PANDA
from sim.tasks import tasks

LIFT = tasks.get("panda-lift").interface
STILL = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
Build = Callable[..., Any]
ARRAY, STATE = "std_msgs/msg/Float64MultiArray", "sensor_msgs/msg/JointState"
FOREIGN = [
    (ARRAY, PANDA.driver.command),  # type: ignore[union-attr]
    (ARRAY, PANDA.driver.gripper_command),  # type: ignore[union-attr]
    (STATE, "joint_states"),
    ("geometry_msgs/msg/PoseStamped", "objects/cube/pose"),
    ("sensor_msgs/msg/Joy", "teleop/panda/joy"),
]


def until_stopped(env: Any, steps: int = 400) -> str:
    """Step until NotReady and return its message."""
    with pytest.raises(NotReady) as error:
        for _ in range(steps):
            env.step(STILL)
    return str(error.value)


@pytest.mark.parametrize(("kind", "topic"), FOREIGN, ids=lambda value: value.rpartition("/")[2])
def test_later_publisher_stops_arm(robot: Any, robot_env: Build, tmp_path: Path, kind: str, topic: str) -> None:
    with open_node("person") as person, open_node("rival", "/x") as rival, open_node("ears") as ears:
        env = robot_env(replace(LIFT, horizon=1000), OperatorInput(ears, "panda"))
        person.publisher("sensor_msgs/msg/Joy", "teleop/panda/joy", qos.SENSOR)
        env.reset(seed=0)
        journal = Journal(tmp_path, env)
        env.step(STILL)
        rival.publisher(kind, f"/{topic}")
        message = until_stopped(env)
        journal.close()
    assert f"/{topic}" in message and "/x/rival" in message and str(os.getpid()) in message and "GUID" in message
    assert message.removeprefix("stopped: ") == env.loop.stopped == env.foreign_publisher
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert {"foreign_publisher", "stop"} <= {e["event"] for e in events if "/x/rival" in str(e["what"])}


def test_commands_without_a_subscriber_stop_the_arm_and_are_refused(robot: Any, robot_env: Build) -> None:
    env = robot_env(replace(LIFT, horizon=1000))
    env.reset(seed=0)
    robot.arm.close()
    assert "nobody listens on /forward_position_controller/commands" in until_stopped(env)
    with pytest.raises(NotReady, match=r"is controller 'forward_position_controller' active .*--activate forward_pos"):
        env.driver.preflight.wait_ready(0.3)


def test_unresponsive_and_blocked_arm_have_different_errors(robot: Any, robot_env: Any, monkeypatch: Any) -> None:
    robot.position[0] -= 0.5
    robot.follows = False
    env = robot_env(LIFT)
    with pytest.raises(NotReady, match="did not move at all.*drives on.*'forward_position_controller'"):
        env.reset_procedure.go_home(timeout=0.5)
    robot.follows, robot.wall = True, -0.3
    with pytest.raises(NotReady, match="although it moved; is something in its way"):
        env.reset_procedure.go_home(timeout=1.0)


def say(driver: Driver, position: Any, at: float, names: Any = PANDA.joint_names) -> None:
    sample = make(STATE, name=list(names), position=np.asarray(position, float), velocity=np.zeros(len(names)))
    driver.state._on_joints(Stamped(bytes(encode(sample, STATE)), STATE, at, 0, 1))


def test_states_alternating_between_two_robots_are_refused(private_domain: int) -> None:
    with open_node("policy") as node:
        driver = open_driver(node, PANDA, dry_run=True)
        true, false = np.array(PANDA.home), np.array(PANDA.home) + 1.0
        fingers = PANDA.gripper.joints  # type: ignore[union-attr]
        say(driver, [0.04, 0.04], 100.0, fingers)
        for k in range(MANY):
            assert not driver.state.jumps.many(100.0 + 0.005 * k)
            say(driver, true, 100.0 + 0.005 * k)
            say(driver, false, 100.002 + 0.005 * k)
            reading = driver.reading()
            assert reading is not None and np.array_equal(reading.position, true)
        assert driver.state.jumps.many(100.1) and not driver.state.jumps.many(102.0)
        say(driver, false, 101.0)  # a lasting change is accepted
        assert np.array_equal(driver.reading().position, false)  # type: ignore[union-attr]


@pytest.mark.parametrize("robot", [PANDA, GO2], ids=lambda robot: robot.name)
@pytest.mark.parametrize("late", [0.0, 0.018])
def test_motion_within_the_speed_limits_is_no_jump(robot: Any, late: float) -> None:
    check, rng = JumpCheck(robot), np.random.default_rng(0)
    period = 1 / robot.state_rate
    for _ in range(300):
        speed = rng.uniform(-1, 1, len(robot.joints)) * [joint.velocity for joint in robot.joints]
        noise = rng.normal(0, 0.011, len(speed))
        lost = rng.integers(1, 20)
        assert not check.refuses(lost * period * speed + noise, lost * period - late, 0.0, slice(None))
    assert check.refuses(np.ones(len(robot.joints)), period, 0.0, slice(None))
