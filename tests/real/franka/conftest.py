"""Simulators of Franka's protocol by other authors, in their own environment, and a robot process before them."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.franka import strict
from real import clock
from real.bus import Node, make, open_node, qos
from real.drivers.lowlevel import REPORT
from real.topics import GUARD_TOPIC, INT, RECOVER_TOPIC, STATUS, GuardReport
from robot_rl.robots.fr3 import FR3

ROOT = Path(__file__).parents[3]
SIMS = Path(os.environ.get("ROBOT_RL_SIMS", ROOT / ".venv-sims")) / "bin" / "python"
HOST = "127.0.0.5"
ARRAY = "std_msgs/msg/Float64MultiArray"


class Server:
    """franka-sim, which aborts motions by reflex as the robot does, and says what it is told to say."""

    def __init__(self, folder: Path):
        assert SIMS.exists(), "make sims"
        self.process = strict.start(SIMS, folder, HOST, (Path(__file__).with_name("strict_server.py"),))

    def tell(self, **fields: Any) -> None:
        """Replace fields of the robot's state on the wire; see strict_server.py."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A fresh simulator: after a motion that a leaving client left aborted, it may send no states to the next."""
    server = Server(tmp_path)
    yield server
    server.process.kill()
    server.process.wait(30)


class Bench:
    """A robot process, and a plain node that commands it."""

    def __init__(self, node: Node, process: subprocess.Popen[str]):
        self.node, self.process = node, process
        self.reports: list[GuardReport] = []
        self.commands = node.publisher(ARRAY, FR3.driver.command, qos.COMMAND)  # type: ignore[attr-defined]
        self.widths = node.publisher(ARRAY, FR3.driver.gripper_command, qos.COMMAND)  # type: ignore[attr-defined]
        self.recover = node.publisher(INT, RECOVER_TOPIC, qos.DEFAULT)
        self.states = node.subscribe("sensor_msgs/msg/JointState", FR3.driver.joint_states, qos.SENSOR)  # type: ignore[attr-defined]
        node.subscribe(STATUS, GUARD_TOPIC, REPORT, self._on_report)
        self.goal: list[float] = []
        self.environment: dict[str, str] = {}
        """Variables of the DDS domain."""

    def _on_report(self, sample: Any) -> None:
        report = GuardReport.of(sample.msg)
        if not self.reports or report != self.reports[-1]:
            self.reports.append(report)

    @property
    def q(self) -> list[float]:
        """Return the newest joint positions of the arm, rad."""
        assert self.states.latest
        return list(self.states.latest.msg.position[:7])

    @property
    def width(self) -> float:
        """Return the newest distance between the fingers, m."""
        assert self.states.latest
        return float(sum(self.states.latest.msg.position[7:]))

    def stream(self, path: Callable[[float], list[float]], seconds: float, rate: float = 200.0) -> None:
        """Send goals of a path for some seconds."""
        begin = time.monotonic()
        for k in range(round(seconds * rate)):
            time.sleep(max(0.0, begin + k / rate - time.monotonic()))
            self.goal = path(k / rate)
            self.commands.publish(make(ARRAY, data=self.goal))

    def arrive(self, seconds: float = 15.0) -> None:
        """Send the last goal until the arm is there: on a busy machine the simulator is slower than real time."""
        end = time.monotonic() + seconds
        while np.abs(np.array(self.q) - self.goal).max() > 0.01:
            assert time.monotonic() < end, (self.reports, self.q, self.goal)
            self.stream(lambda _: self.goal, 0.05)

    def until(self, holds: Callable[[], Any], seconds: float = 10.0) -> None:
        assert clock.wait(holds, seconds), (self.reports[-3:], self.states.latest and self.q)

    def pid(self, module: str) -> int:
        """Return the id of the process of arm or hand."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid), "-f", module], capture_output=True, text=True)
        return int(found.stdout)


@pytest.fixture
def hold(server: Server) -> Iterator[Callable[..., Bench]]:
    """Start a robot process with options."""
    opened: list[Any] = []

    def start(*options: str, host: str = HOST) -> Bench:
        domain = str(random.SystemRandom().randint(200, 229))
        environment = {"ROS_DOMAIN_ID": domain, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
        command = [sys.executable, "-m", "robot_rl.cli.main", "robot", "fr3", "--host", host, *options]
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            node = open_node("plain")
        opened.append((process, node))
        bench = Bench(node, process)
        bench.environment = environment
        bench.until(lambda: bench.states.latest and bench.reports and bench.commands.matched, 20)
        return bench

    yield start
    for process, node in opened:
        node.close()
        process.terminate()
        process.communicate(timeout=20)
