"""An arm behind a mock controller manager in another process, and its environment by a profile."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from real.bus import open_node
from real.episode.env import RobotEnv
from robot_rl.interface.robot import RobotSpec
from robot_rl.robots import robots
from robot_rl.robots.profiles import with_profile
from sim.tasks import tasks

ROOT = Path(__file__).parents[3]
TASKS = {"ur5e": "ur5e-reach", "fr3": "fr3-lift"}
UR = {"robot": "ur5e", "ur": True, "wrench": "force_torque_sensor_broadcaster/wrench"}
FRANKA = {"wrench": "franka_robot_state_broadcaster/external_wrench_in_base_frame"}


class Mock:
    """The mock's process; `mock.name(...)` runs the method of that name in it and returns its value."""

    def __init__(self, config: dict[str, Any]):
        command = [sys.executable, str(Path(__file__).with_name("mock_manager.py")), json.dumps(config)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )  # fmt: skip
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def do(*words: Any) -> Any:
            assert self.process.stdin and self.process.stdout
            self.process.stdin.write(json.dumps([name, *words]) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

        return do

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start(private_domain: int) -> Iterator[Callable[..., Mock]]:
    with ExitStack() as opened:
        yield lambda **config: opened.enter_context(closing(Mock(config)))


@pytest.fixture
def start_ur(start: Callable[..., Mock]) -> Callable[..., Mock]:
    """Start a UR5e whose program runs, with its controllers; `active`: which of them has the joints."""

    def build(active: str = "forward_position_controller", **config: Any) -> Mock:
        kinds = {
            "forward_position_controller": "position", "forward_velocity_controller": "velocity",
            "scaled_joint_trajectory_controller": "trajectory", "joint_state_broadcaster": "broadcaster",
        }  # fmt: skip
        state = {active: "active", "joint_state_broadcaster": "active"}
        controllers = {name: (kind, state.get(name, "inactive")) for name, kind in kinds.items()}
        mock = start(**({"controllers": controllers} | UR | config))
        mock.say("robot_program_running", True)
        mock.say("safety_mode", 1)
        return mock

    return build


@pytest.fixture
def start_fr3(start: Callable[..., Mock]) -> Callable[..., Mock]:
    """Start an FR3 with a controller, and joint states as franka_ros2 merges them: prefixed, at 30 Hz."""

    def build(controller: str, kind: str, **config: Any) -> Mock:
        controllers = {controller: (kind, "active"), "joint_state_broadcaster": ("broadcaster", "active")}
        return start(robot="fr3", prefix="fr3_", rate=30, controllers=controllers, **(FRANKA | config))

    return build


@pytest.fixture
def spec_of(steady: Any) -> Callable[..., RobotSpec]:
    """Return a robot with a profile, and with time limits that tolerate a busy machine."""

    def build(robot: str, profile: str, **fields: Any) -> RobotSpec:
        spec = with_profile(robots.get(robot), profile)
        return replace(spec, driver=replace(spec.driver, **({"safety": steady} | fields)))

    return build


@pytest.fixture
def open_env(private_domain: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RobotEnv]]:
    """Open an environment; a refused one leaves nothing behind."""
    monkeypatch.setattr("real.control.loop.STALL", 10.0)
    with ExitStack() as opened:

        def build(spec: RobotSpec) -> RobotEnv:
            interface = tasks.get(TASKS[spec.name]).interface
            views = ("joint_position", "tool_position")
            plain = replace(interface, observations=views, success="", failure="", horizon=1000)
            with ExitStack() as refused:
                node = refused.enter_context(open_node("policy"))
                env = RobotEnv(node, plain, robot=spec)
                refused.callback(env.close)
                opened.push(refused.pop_all())
            return env

        yield build
