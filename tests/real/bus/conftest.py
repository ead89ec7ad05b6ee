"""A private loopback domain for the session, and a second process that does as it is told."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

DOMAIN = random.SystemRandom().randint(100, 199)
# Bound to `lo`, and with a tag of its own: no other session can be met, even in the same domain.
URI = (
    "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='false'/></Interfaces>"
    "<AllowMulticast>false</AllowMulticast></General>"
    f"<Discovery><Tag>pytest-{os.getpid()}</Tag><ParticipantIndex>auto</ParticipantIndex>"
    "<MaxAutoParticipantIndex>32</MaxAutoParticipantIndex><Peers><Peer address='127.0.0.1'/></Peers>"
    "<LeaseDuration>3s</LeaseDuration></Discovery></Domain></CycloneDDS>"
)
SERVE = """
import sys
space = {}
for line in sys.stdin:
    try:
        code = eval(line)
        try:
            answer = eval(code, space)
        except SyntaxError:
            exec(code, space)
            answer = None
    except BaseException as error:
        answer = f"!{type(error).__name__}: {error}"
    print(repr(answer), flush=True)
"""


class Peer:
    """Another Python process: `do` runs code in it and gives the value of an expression back."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(repr(code) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        value = eval(self.process.stdout.readline() or "'!gone'")  # noqa: S307 - our own child
        assert not (isinstance(value, str) and value.startswith("!")), value
        return value

    def do(self, code: str) -> Any:
        self.tell(code)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session", autouse=True)
def loopback() -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ROS_DISTRO", "ROS_LOCALHOST_ONLY", "ROS_STATIC_PEERS"):
            patch.delenv(name, raising=False)
        patch.setenv("ROS_DOMAIN_ID", str(DOMAIN))
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        patch.setenv("CYCLONEDDS_URI", URI)
        yield DOMAIN


@pytest.fixture
def peer(loopback: int) -> Iterator[Peer]:
    process = Peer()
    yield process
    process.close()
