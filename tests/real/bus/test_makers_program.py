"""Robot makers' own programs on this machine: plain Cyclone that is bound to `lo`, as Unitree's SDK binds it."""

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from real.bus import make, open_node

STRING = "std_msgs/msg/String"
INTERFACES = "<Interfaces><NetworkInterface name='lo' priority='default' multicast='{}'/></Interfaces>"
XML = "<CycloneDDS><Domain Id='any'><General>" + INTERFACES + "</General></Domain></CycloneDDS>"
MAKER = """
import time
from dataclasses import dataclass
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration
@dataclass
class String(IdlStruct, typename="std_msgs.msg.dds_.String_"):
    data: str
domain = Domain({domain}, {xml!r})
participant = DomainParticipant({domain})
writer = DataWriter(participant, Topic(participant, "rt/state", String))
reader = DataReader(participant, Topic(participant, "rt/command", String))
def matched(end=time.monotonic() + 20):
    while not (reader.get_matched_publications() and writer.get_matched_subscriptions()):
        assert time.monotonic() < end
        time.sleep(0.002)
    return True
"""
READ = "next(reader.take_iter(timeout=duration(seconds=20))).data"


@pytest.fixture(scope="module", autouse=True)
def loopback() -> Iterator[int]:
    """Return a random domain with discovery range LOCALHOST and none of the tests' own XML."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("ROS_", "CYCLONEDDS_"))]:
            patch.delenv(name)
        patch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        yield random.SystemRandom().randint(100, 190)


@pytest.mark.parametrize("uri", ["", XML.format("default")], ids=["plain", "with the maker's XML"])
@pytest.mark.parametrize("multicast", ["default", "false"])
@pytest.mark.parametrize("maker_first", [True, False], ids=["maker first", "ours first"])
def test_program_on_lo_is_found(
    loopback: int, peer: Any, monkeypatch: pytest.MonkeyPatch, uri: str, multicast: str, maker_first: bool
) -> None:
    monkeypatch.setenv("CYCLONEDDS_URI", uri)
    start = MAKER.format(domain=loopback, xml=XML.format(multicast))
    if maker_first:
        peer.do(start)
    with open_node("ours", domain=loopback, backend="dds") as node:
        state, command = node.subscribe(STRING, "/state"), node.publisher(STRING, "/command")
        if not maker_first:
            peer.do(start)
        assert node.wait_for(lambda: state.matched == 1 and command.matched == 1, 20.0)
        assert peer.do("matched()")
        command.publish(make(STRING, data="stand up"))
        assert peer.do(READ) == "stand up"
        peer.do("writer.write(String('standing'))")
        assert state.wait(20.0, after=0) and state.latest.msg.data == "standing"
