"""The driver of a robot with Unitree's messages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from real.bus import Node, open_node
from real.robots import open_driver
from real.robots.arm import ArmDriver
from real.robots.base import NotReady
from real.robots.unitree import UnitreeDriver
from robot_rl.robots.go2 import GO2
from robot_rl.robots.panda import PANDA

Build = Callable[..., Any]
TILTED = np.array([math.cos(0.2), 0.3 * math.sin(0.2), 0.5 * math.sin(0.2), math.sqrt(0.66) * math.sin(0.2)])


@pytest.fixture
def node(private_domain: int) -> Iterator[Node]:
    with open_node("policy") as opened:
        yield opened


@pytest.fixture
def ready(node: Node, topic_quadruped: Build) -> tuple[Any, UnitreeDriver]:
    """Return a robot and its driver after the first state."""
    robot, driver = topic_quadruped(), UnitreeDriver(node, GO2)
    driver.wait_ready(30)
    return robot, driver


def test_driver_matches_the_robots_interface(node: Node) -> None:
    assert isinstance(open_driver(node, GO2), UnitreeDriver)
    assert isinstance(open_driver(node, PANDA), ArmDriver)


def test_joints_feet_and_trunk_are_in_the_order_of_the_spec(
    node: Node, topic_quadruped: Build, eventually: Build
) -> None:
    robot = topic_quadruped()
    robot.position, robot.speed = np.arange(12) / 10, np.arange(12.0) - 5
    robot.quat, robot.gyroscope = TILTED, np.array([0.1, -0.2, 0.3])
    driver = UnitreeDriver(node, GO2)
    driver.wait_ready(30)
    eventually(lambda: abs(driver.reading().quat[3] - TILTED[3]) < 1e-6)
    state = driver.state(torch.zeros(1, 12))
    assert state is not None
    assert state.joint_position[0].tolist() == pytest.approx((np.arange(12) / 10).tolist())
    assert state.joint_velocity[0].tolist() == pytest.approx((np.arange(12.0) - 5).tolist())
    assert state.base_quat[0].tolist() == pytest.approx(TILTED.tolist()), "w x y z"
    assert state.base_angular_velocity[0].tolist() == pytest.approx([0.1, -0.2, 0.3])
    assert state.foot_force[0].tolist() == [20, 10, 40, 30], "FR FL RR RL becomes FL FR RL RR"
    _, x, y, _ = TILTED
    assert driver.reading().upright == pytest.approx(1 - 2 * (x * x + y * y))


@pytest.mark.parametrize("damage", ["checksum", "nan", "orientation", "length"])
def test_damaged_state_is_rejected_and_counted(
    ready: tuple[Any, UnitreeDriver], eventually: Build, damage: str
) -> None:
    robot, driver = ready
    robot.silent = True
    eventually(lambda: not driver.joints.wait(0.05), "silence")
    message = robot.message()
    if damage == "nan":
        message["motor_state"]["q"][3] = np.nan
    if damage == "orientation":
        message["imu_state"]["quaternion"] = 0
    raw = robot._state.seal(message)
    if damage == "checksum":
        raw = raw[:-1] + bytes([raw[-1] ^ 1])
    before = driver.reading()
    if damage == "length":
        driver._on_state(type("Sample", (), {"raw": raw[:-8], "received": 0.0})())
    else:
        robot.states.publish(raw)
    eventually(lambda: driver.rejected == 1)
    assert driver.reading() is before


def test_repeated_state_ages(ready: tuple[Any, UnitreeDriver], eventually: Build) -> None:
    """The robot's own software may hang and repeat its last state."""
    robot, driver = ready
    robot.frozen = True
    eventually(lambda: time.monotonic() - driver.reading().received > 0.1)
    count = driver.joints.latest.count
    eventually(lambda: driver.joints.latest.count > count + 5)
    assert driver.rejected == 0
    robot.frozen = False
    eventually(lambda: time.monotonic() - driver.reading().received < 0.05)


def test_missing_robot_or_guard_is_named(node: Node, topic_quadruped: Build) -> None:
    driver = UnitreeDriver(node, GO2)
    with pytest.raises(NotReady, match="state of go2 on /lowstate.*robot-rl twin go2"):
        driver.wait_ready(0.1)
    topic_quadruped(commands="elsewhere")
    driver.joints.wait(30)
    with pytest.raises(NotReady, match="nobody listens on /lowcmd_wanted.*robot-rl guard go2"):
        driver.wait_ready(0.2)


def test_second_policy_is_refused(node: Node, topic_quadruped: Build, eventually: Build) -> None:
    topic_quadruped()
    with open_node("other") as other:
        UnitreeDriver(other, GO2)
        driver = UnitreeDriver(node, GO2)
        eventually(driver.command.other_writers)
        with pytest.raises(NotReady, match="/other already sends commands on /lowcmd_wanted"):
            driver.wait_ready(30)


def test_dry_run_sends_nothing(node: Node, topic_quadruped: Build) -> None:
    robot = topic_quadruped()
    driver = UnitreeDriver(node, GO2, dry_run=True)
    driver.wait_ready(30)
    driver.send(np.array(GO2.home), 0.0)
    driver.damp()
    assert robot.obeyed.matched == 0 and not robot.commands


def test_commands_arrive_in_the_order_of_the_spec(ready: tuple[Any, UnitreeDriver], eventually: Build) -> None:
    robot, driver = ready
    driver.stiffness_scale = 0.5
    driver.send(np.array(GO2.home), 0.0)
    eventually(lambda: robot.commands)
    motors = robot.commands[0][1]
    assert motors["q"].tolist() == pytest.approx(list(GO2.home)) and (motors["kp"] == 20).all()
    driver.damp()
    eventually(lambda: robot.is_damped)
