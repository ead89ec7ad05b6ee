"""A robot by Unitree's own SDK in another process and environment, and the project's nodes on its domain."""

import json
import os
import queue
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from real.bus import Node, open_node

ROOT = Path(__file__).parents[3]
SIMS = Path(os.environ.get("ROBOT_RL_SIMS", ROOT / ".venv-sims")) / "bin" / "python"
WAIT = 30.0  # longest wait for what normally takes less than a second, s


class SdkRobot:
    """Process of sdk_robot.py: what it says, and the faults that it is told to have."""

    def __init__(self, domain: int):
        assert SIMS.exists(), "make sims"
        command = [str(SIMS), str(Path(__file__).with_name("sdk_robot.py")), str(domain)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.commands: list[dict[str, Any]] = []
        """Different motor commands as the SDK read them."""
        self.requests: list[list[Any]] = []
        """Service, api id and parameter of each request."""
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._said.get(timeout=WAIT) == {"up": True}

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if not line.startswith("{"):  # the SDK's own messages
                continue
            said = json.loads(line)
            if "command" in said:
                self.commands.append(said["command"])
            elif "request" in said:
                self.requests.append(said["request"])
            else:
                self._said.put(said)

    def tell(self, **faults: Any) -> None:
        """Replace the robot's faults; see sdk_robot.py."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(faults) + "\n")
        self.process.stdin.flush()

    def asked(self, service: str) -> list[int]:
        """Return the api ids of all requests to a service."""
        return [api for name, api, _ in self.requests if name == service]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[SdkRobot, int]]:
    domain = random.SystemRandom().randint(200, 229)
    robot = SdkRobot(domain)
    yield robot, domain
    robot.close()


@pytest.fixture
def robot(running: tuple[SdkRobot, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[SdkRobot]:
    """The robot without faults and mode; nodes of the test are on its domain."""
    robot, domain = running
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    for name in ("COMMAND_TIMEOUT", "STATE_TIMEOUT"):  # a busy machine
        monkeypatch.setattr(f"real.control.guard.{name}", 1.0)
    robot.tell(mode="")
    robot.commands.clear()
    robot.requests.clear()
    yield robot


@pytest.fixture
def nodes(robot: SdkRobot) -> Iterator[Callable[[str], Node]]:
    """Open nodes on the robot's domain until the end of the test."""
    opened: list[Node] = []

    def build(name: str) -> Node:
        opened.append(open_node(name))
        return opened[-1]

    yield build
    for node in opened:
        node.close()
