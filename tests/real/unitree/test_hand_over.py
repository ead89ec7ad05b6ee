"""Hand-over of the motors from the robot's own mode to the guard, against a server of Unitree's own SDK."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from real.control.guard import Guard
from robot_rl.robots.go2 import GO2
from robot_rl.util.errors import UserError
from tests.real.unitree.conftest import SdkRobot

Build = Callable[..., Any]
CHECK, RELEASE, STAND_DOWN = 1001, 1003, 1005


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LYING", 0.1), ("RELEASE", 1.0), ("RETRY", 0.2), ("DISCOVERY", 10.0)):
        monkeypatch.setattr(f"real.drivers.motion_switcher.{name}", seconds)


def test_guard_starts_without_an_active_mode(robot: SdkRobot, nodes: Build) -> None:
    guard = Guard(nodes("guard"), GO2)
    assert robot.asked("motion_switcher") == [CHECK] and not robot.asked("sport") and guard.switcher.mode == ""


def test_active_mode_is_named_and_nothing_is_sent(robot: SdkRobot, nodes: Build) -> None:
    robot.tell(mode="normal")
    with pytest.raises(UserError, match="mode 'normal' of the robot is active.* robot-rl guard … --release"):
        Guard(nodes("guard"), GO2)
    assert robot.asked("motion_switcher") == [CHECK] and not robot.commands, "asked, not released"


def test_guard_releases_with_consent_after_lying_down(robot: SdkRobot, nodes: Build) -> None:
    robot.tell(mode="ai")
    Guard(nodes("guard"), GO2, release=True)
    asked = [(name, api) for name, api, _ in robot.requests]
    switcher = "motion_switcher"
    assert asked == [(switcher, CHECK), ("sport", STAND_DOWN), *[(switcher, a) for a in (CHECK, RELEASE, CHECK)]]
    assert not robot.commands, "no motor command before the release"


def test_mode_that_stays_active_is_an_error(robot: SdkRobot, nodes: Build) -> None:
    robot.tell(mode="mcf", keeps=True)
    with pytest.raises(UserError, match="mode 'mcf' is still active after 1 s"):
        Guard(nodes("guard"), GO2, release=True)
    assert robot.asked("motion_switcher").count(RELEASE) > 2 and not robot.commands


def test_error_of_the_switcher_is_named(robot: SdkRobot, nodes: Build) -> None:
    robot.tell(code=7001)
    with pytest.raises(UserError, match="service 'motion_switcher' of the robot, request 1001: error 7001"):
        Guard(nodes("guard"), GO2)


def test_mode_that_is_chosen_later_damps(robot: SdkRobot, nodes: Build, eventually: Build) -> None:
    """Somebody starts sport mode in the app while a policy walks."""
    guard = Guard(nodes("guard"), GO2)
    thread = threading.Thread(target=guard.run, daemon=True)
    thread.start()
    eventually(lambda: robot.commands)
    robot.tell(mode="normal")
    eventually(lambda: guard.damping == "mode 'normal' of the robot is active")
    robot.tell(mode="")
    eventually(lambda: not guard.foreign_publisher)
    assert guard.latched and guard.events == {"mode 'normal' of the robot is active": 1}
    guard.close()
    thread.join(30)


def test_command_line_asks_for_consent(robot: SdkRobot) -> None:
    robot.tell(mode="normal")
    command = [sys.executable, "-m", "robot_rl.cli.main", "guard", "go2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode and "mode 'normal' of the robot is active" in " ".join(ended.stderr.split())
    assert RELEASE not in robot.asked("motion_switcher")
