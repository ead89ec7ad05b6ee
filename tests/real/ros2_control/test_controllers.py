"""A controller that is missing or inactive, and a robot that does not obey: refused at the start, a stop later."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from real.drivers.robot_status import RobotStatus
from real.drivers.state import NotReady
from robot_rl.interface.robot import RobotSpec

Build = Callable[..., Any]
MOVES = torch.tensor([[0.5, 0.0, 0.0]])
NAME = "forward_position_controller"


@pytest.fixture
def spec(spec_of: Build) -> RobotSpec:
    return spec_of("ur5e", "ur_robot_driver")  # type: ignore[no-any-return]


def test_controller_that_is_not_there_or_not_active_is_refused_by_name(
    spec: RobotSpec, start_ur: Build, open_env: Build, eventually: Build
) -> None:
    mock = start_ur()
    mistyped = replace(spec.driver, controllers=("forward_positon_controller",), command=f"{NAME}/commands")
    with pytest.raises(NotReady, match=rf"no controller 'forward_positon_controller'; did you mean {NAME}"):
        open_env(replace(spec, driver=mistyped))
    elsewhere = replace(spec.driver, controllers=("gone",), command="gone/commands")
    with pytest.raises(NotReady, match="no controller 'gone'"):  # and not only that nobody listens
        open_env(replace(spec, driver=elsewhere))
    mock.set(NAME, "inactive")
    with pytest.raises(NotReady, match=rf"'{NAME}' is inactive: `ros2 control switch_controllers --activate {NAME}`"):
        open_env(spec)
    assert mock.ask(NAME)["accepted"] == mock.ask(NAME)["ignored"] == 0, "nothing was sent"
    mock.set(NAME, "active")
    env = open_env(spec)
    env.activate()
    eventually(lambda: mock.ask(NAME)["accepted"] > 5, "commands")


@pytest.mark.parametrize("activity", [True, False], ids=["by topic", "by service"])
def test_controller_that_goes_inactive_stops_the_policy(
    spec: RobotSpec, start_ur: Build, open_env: Build, activity: bool, eventually: Build
) -> None:
    mock = start_ur(activity=activity)
    env = open_env(spec)
    env.activate()
    env.reset(seed=0)
    env.step(MOVES)
    assert not env.loop.stopped
    mock.set(NAME, "inactive")

    def stops() -> str:
        env.step(MOVES)
        return env.loop.stopped  # type: ignore[no-any-return]

    eventually(stops)
    assert f"controller '{NAME}' is inactive" in env.loop.stopped
    mock.set(NAME, "active")
    eventually(lambda: env.step(MOVES) and not env.driver.objection(0.0), "obeying again")
    assert env.loop.stopped, "latched"
    env.loop.reset_stop()
    env.step(MOVES)
    assert not env.loop.stopped


def test_robot_that_does_not_obey_is_refused(spec: RobotSpec, start_ur: Build, open_env: Build, nodes: Build) -> None:
    mock = start_ur()
    for what, value, words in (
        ("robot_program_running", False, "program does not run"),
        ("safety_mode", 3, "safety mode is PROTECTIVE_STOP"),
        ("speed_scaling", 0.0, "scaled to 0 %"),
    ):
        mock.say(what, value)
        with pytest.raises(NotReady, match=words):
            open_env(spec)
        mock.say(what, {"robot_program_running": True, "safety_mode": 1}.get(what, 100.0))
    assert mock.ask(NAME)["accepted"] == 0
    silent = RobotStatus(nodes("other"), replace(spec.driver, robot_program="elsewhere/program"))
    with pytest.raises(NotReady, match=r"nothing arrives on /elsewhere/program: is controller 'elsewhere' active"):
        silent.wait(0.2)


def test_robot_that_ceases_to_obey_stops_the_policy(
    spec: RobotSpec, start_ur: Build, open_env: Build, nodes: Build, eventually: Build
) -> None:
    mock = start_ur()
    texts: list[str] = []
    nodes("console").subscribe("rcl_interfaces/msg/Log", "/rosout", callback=lambda s: texts.append(s.msg.msg))
    env = open_env(spec)
    env.activate()
    env.reset(seed=0)
    mock.say("speed_scaling", 50.0)

    def slowed() -> bool:
        env.step(MOVES)
        return any("scaled to 50 %" in text for text in texts)

    eventually(slowed)
    assert not env.loop.stopped, "reported only"
    for what, value, good, words in (
        ("robot_program_running", False, True, "program does not run"),
        ("safety_mode", 5, 1, "SAFEGUARD_STOP"),
        ("speed_scaling", 0.0, 100.0, "scaled to 0 %"),
    ):
        mock.say(what, value)
        eventually(lambda: env.loop.stopped)
        assert words in env.loop.stopped
        mock.say(what, good)
        eventually(lambda: not env.driver.objection(0.0))
        env.loop.reset_stop()
        assert not env.step(MOVES)[4].get("stopped") and not env.loop.stopped
