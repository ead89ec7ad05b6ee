"""External force at the tool: zeroed before the first command; above its limit, or silent, it stops the arm."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from real import clock
from real.drivers import open_driver
from real.drivers.state import NotReady
from real.drivers.wrench import IN_A_ROW
from robot_rl.interface.robot import RobotSpec

Build = Callable[..., Any]
STILL = torch.zeros(1, 3)
NAME = "forward_position_controller"
OFFSET = [8.0, -3.0, 2.0, 0.0, 0.0, 0.5]
PRESS = [0.0, 0.0, -70.0, 0.0, 0.0, 0.0]


@pytest.fixture
def spec(spec_of: Build) -> RobotSpec:
    return spec_of("ur5e", "ur_robot_driver")  # type: ignore[no-any-return]


@pytest.fixture
def running(spec: RobotSpec, start_ur: Build, open_env: Build) -> tuple[Any, Any]:
    """Return a mock at 100 Hz and an environment in an episode."""
    mock = start_ur(rate=100)
    env = open_env(replace(spec, driver=replace(spec.driver, state_rate=100)))
    env.activate()
    env.reset(seed=0)
    return mock, env


def stops(env: Any) -> Callable[[], str]:
    def stopped() -> str:
        env.step(STILL)
        return env.loop.stopped  # type: ignore[no-any-return]

    return stopped


def test_third_message_in_a_row_above_the_limit_stops_with_the_value(
    running: tuple[Any, Any], eventually: Build
) -> None:
    mock, env = running
    mock.press(PRESS, IN_A_ROW - 1)
    eventually(lambda: env.step(STILL) and mock.pressed() == 0, "two messages")
    for _ in range(5):
        env.step(STILL)
    assert not env.loop.stopped, "noise"
    mock.press(PRESS, IN_A_ROW)
    eventually(stops(env))
    assert env.loop.stopped == "external force of 70 N at the tool, above force_limit, 40 N", "without the offset"
    eventually(lambda: not env.driver.objection(clock.now()), "the tool is free")
    assert env.loop.stopped, "latched"
    env.loop.reset_stop()
    env.step(STILL)
    assert not env.loop.stopped


@pytest.mark.parametrize(
    ("press", "words"),
    [([0.0, 0.0, 0.0, 0.0, 12.0, 0.0], "external torque of 12 N m at the tool, above torque_limit, 10 N m"),
     ([math.nan] * 6, "external force of nan N")],
)  # fmt: skip
def test_torque_and_what_is_no_number_stop_too(
    running: tuple[Any, Any], press: list[float], words: str, eventually: Build
) -> None:
    mock, env = running
    mock.press(press, 1000)
    eventually(stops(env))
    assert words in env.loop.stopped
    env.loop.reset_stop()
    env.step(STILL)
    eventually(stops(env), "the tool is still pressed")


def test_silence_stops(running: tuple[Any, Any], eventually: Build) -> None:
    mock, env = running
    mock.read(None)
    eventually(stops(env))
    assert "no force arrives on /force_torque_sensor_broadcaster/wrench" in env.loop.stopped
    mock.read(OFFSET)
    eventually(lambda: not env.driver.objection(clock.now()))
    env.loop.reset_stop()
    env.step(STILL)
    assert not env.loop.stopped


def test_offset_above_the_limit_is_refused_before_anything_is_sent(
    spec: RobotSpec, start_ur: Build, open_env: Build
) -> None:
    mock = start_ur(force=[30.0, 0.0, 40.0, 0.0, 0.0, 0.0])
    with pytest.raises(NotReady, match=r"external force of 50 N .* while the arm stands still: free the tool.*zero_ft"):
        open_env(spec)
    assert mock.ask(NAME)["accepted"] == 0
    open_env(replace(spec, driver=replace(spec.driver, force_limit=60.0)))
    mock.read([0.0] * 6)


def test_silent_topic_is_refused_by_name(spec: RobotSpec, start_ur: Build, nodes: Build) -> None:
    start_ur()
    driver = open_driver(nodes("policy"), replace(spec, driver=replace(spec.driver, wrench="elsewhere/wrench")), (), ())
    wrench = driver.commands.wrench  # type: ignore[union-attr]
    with pytest.raises(NotReady, match="no force arrives on /elsewhere/wrench.*is it at rest"):
        wrench.wait(0.2)
