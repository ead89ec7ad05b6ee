"""Private domain for ROS's own nodes, a process of such nodes, and our nodes with both backends."""

import os
import platform
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from real.bus import Node, open_node

LO = (
    "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo' multicast='false'/></Interfaces></General>"
    "<Discovery><LeaseDuration>3s</LeaseDuration></Discovery></Domain></CycloneDDS>"
)


@pytest.fixture(scope="module", autouse=True)
def loopback() -> Iterator[int]:
    """Return a random domain on this machine, without a tag, which Fast DDS does not have."""
    if not os.environ.get("CI") or platform.machine() != "x86_64":  # CI must have the wheels
        pytest.importorskip("rclpy")
    domain = random.SystemRandom().randint(100, 199)
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("ROS_", "RMW_", "FASTRTPS_", "FASTDDS_", "AMENT_"))]:
            patch.delenv(name)
        patch.setenv("ROS_DOMAIN_ID", str(domain))
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        patch.setenv("CYCLONEDDS_URI", LO)
        yield domain


@pytest.fixture(scope="module")
def user(loopback: int, start_peer: Callable[[], Any]) -> Iterator[Any]:
    """Return a process with plain rclpy nodes; our participants stay open beside it, so that it knows them."""
    with open_node("anchor", backend="dds"), open_node("anchor", backend="rclpy"), closing(start_peer()) as process:
        process.do(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})")
        process.do("from user import *")
        yield process


@pytest.fixture(params=["dds", "rclpy"])
def node(request: pytest.FixtureRequest, user: Any) -> Iterator[Node]:
    """Return our node in the namespace /arm."""
    with open_node("here", "/arm", backend=request.param) as opened:
        yield opened
