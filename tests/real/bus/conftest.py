"""Private loopback domain and a second process that evaluates code."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

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
    """Second Python process; `do` runs code in it and returns the value of an expression."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVE]
        self.process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, code: str) -> Any:
        self.process.stdin.write(repr(code) + "\n")
        self.process.stdin.flush()
        value = eval(self.process.stdout.readline() or "'!gone'")  # noqa: S307 - our own child
        assert not (isinstance(value, str) and value.startswith("!")), value
        return value

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module", autouse=True)
def loopback(private_domain: int) -> Iterator[int]:
    """Return the private domain, in which a killed peer disappears after 3 s instead of 10 s."""
    lease = "<LeaseDuration>3s</LeaseDuration></Discovery>"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CYCLONEDDS_URI", os.environ["CYCLONEDDS_URI"].replace("</Discovery>", lease))
        yield private_domain


@pytest.fixture
def peer(loopback: int) -> Iterator[Peer]:
    with closing(Peer()) as process:
        yield process


@pytest.fixture(scope="session")
def start_peer() -> Callable[[], Peer]:
    return Peer
