import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

import pytest
from cyclonedds.domain import Domain

from real.bus import BusError, domain, open_node
from real.bus.participant import delete
from robot_rl.util.errors import ConfigError

MULTICAST_OFF = "<General><AllowMulticast>false</AllowMulticast></General>"
LOOPBACK = (
    '<General><Interfaces><NetworkInterface autodetermine="true"/><NetworkInterface name="lo" allow_multicast="spdp"/>'
    "</Interfaces><AllowMulticast>false</AllowMulticast></General>"
)
AUTO = "<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>"


def wrap(general: str, discovery: str) -> str:
    internal = "<Internal><GenerateKeyhash>true</GenerateKeyhash></Internal>"
    return f"<CycloneDDS><Domain>{general}<Discovery>{discovery}</Discovery>{internal}</Domain></CycloneDDS>,"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, wrap("", AUTO)),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET", "ROS_STATIC_PEERS": "10.0.0.2; host.lan"},
         wrap("", AUTO + '<Peers><Peer address="10.0.0.2"/><Peer address="host.lan"/></Peers>')),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"},
         wrap(LOOPBACK, AUTO + '<Peers><Peer address="localhost"/></Peers>')),
        ({"ROS_LOCALHOST_ONLY": "1", "ROS_STATIC_PEERS": "10.0.0.2"},
         wrap(LOOPBACK, AUTO + '<Peers><Peer address="localhost"/></Peers>')),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "OFF"},
         wrap(MULTICAST_OFF, "<ParticipantIndex>none</ParticipantIndex><Tag>ros_discovery_off_7</Tag>")),
        ({"ROS_AUTOMATIC_DISCOVERY_RANGE": "SYSTEM_DEFAULT", "CYCLONEDDS_URI": "u"}, "u"),
        ({"CYCLONEDDS_URI": "file:///mine.xml"}, wrap("", AUTO) + "file:///mine.xml"),
    ],
)  # fmt: skip
def test_configuration_is_that_of_rmw_cyclonedds(env: Mapping[str, str], expected: str) -> None:
    assert domain.configuration(env, pid=7) == expected


@pytest.mark.parametrize("peer", ["no such host", "127.0.0.1:70000", "::::", "::1"])
def test_static_peer_without_an_address_is_refused(peer: str) -> None:
    """Cyclone would abort the process."""
    with pytest.raises(ConfigError, match="ROS_STATIC_PEERS names") as error:
        domain.check_peers({"ROS_STATIC_PEERS": f"127.0.0.1;{peer}"})
    assert repr(peer) in str(error.value)
    for harmless in ({"ROS_LOCALHOST_ONLY": "1"}, {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SYSTEM_DEFAULT"}):
        domain.check_peers({"ROS_STATIC_PEERS": peer} | harmless)
    domain.check_peers({"ROS_STATIC_PEERS": "127.0.0.1; 127.0.0.1:7410;localhost;"})


SOCKETS = """
import os
from real.bus import open_node
with open_node("n") as node:
    own = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and
           os.path.exists(f"/proc/self/fd/{fd}")}
    rows = [line.split() for line in open("/proc/net/udp").readlines()[1:]]
    print({row[1].split(":")[0] for row in rows if f"socket:[{row[9]}]" in own})
"""


@pytest.mark.parametrize(
    "uri", ["", "<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='lo'/></Interfaces></General>"
            "</Domain></CycloneDDS>"],
)  # fmt: skip
def test_localhost_selects_the_loopback_interface(loopback: int, uri: str) -> None:
    """ROS 2 with Cyclone 0.10 announces itself only there; Cyclone 11 ignores it without `lo`."""
    env = {**os.environ, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "CYCLONEDDS_URI": uri}
    done = subprocess.run([sys.executable, "-c", SOCKETS], env=env, capture_output=True, text=True, timeout=60)
    assert "0100007F" in done.stdout, done.stderr
    assert not done.stderr, "the first attempt prints nothing"


@pytest.mark.parametrize("scope", ["SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT"])
def test_description_of_the_bound_ports(scope: str) -> None:
    text = domain.describe({"ROS_AUTOMATIC_DISCOVERY_RANGE": scope, "ROS_DOMAIN_ID": "2"})
    assert scope in text and "domain 2" in text and "7900 to 7975" in text and "lo" in text


def test_domain_id_and_discovery_range() -> None:
    assert domain.domain_id(None, {}) == 0 and domain.domain_id(None, {"ROS_DOMAIN_ID": "42"}) == 42
    assert domain.domain_id(7, {"ROS_DOMAIN_ID": "42"}) == 7
    for given, env in ((233, {}), (-1, {}), (None, {"ROS_DOMAIN_ID": "x"}), (None, {"ROS_DOMAIN_ID": "300"})):
        with pytest.raises(BusError, match="0 to 232"):
            domain.domain_id(given, env)
    with pytest.raises(BusError, match="SUBNET, LOCALHOST"):
        domain.configuration({"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCAL"})


def test_no_free_participant_index(loopback: int, monkeypatch: pytest.MonkeyPatch) -> None:
    other = 100 + (loopback - 100 + 50) % 100
    uri = wrap("", "<MaxAutoParticipantIndex>0</MaxAutoParticipantIndex>")
    monkeypatch.setenv("CYCLONEDDS_URI", uri)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 7400 + 250 * other + 10))
        with pytest.raises(BusError, match=r"participant index.*MaxAutoParticipantIndex"):
            open_node("n", domain=other)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("<CycloneDDS><Nope/></CycloneDDS>", r"unknown element.*Correct the XML in CYCLONEDDS_URI"),
        ("file:///no/such.xml", r"Correct the path in CYCLONEDDS_URI"),
        ("<CycloneDDS><Domain><General><Interfaces><NetworkInterface name='none0'/></Interfaces></General>"
         "</Domain></CycloneDDS>", r"none0.*Name an existing network interface"),
    ],
)  # fmt: skip
def test_invalid_uri(loopback: int, monkeypatch: pytest.MonkeyPatch, uri: str, message: str) -> None:
    monkeypatch.setenv("CYCLONEDDS_URI", uri)
    with pytest.raises(BusError, match=message):
        open_node("n", domain=100 + (loopback - 100 + 51) % 100)


def test_domain_used_by_other_code(loopback: int) -> None:

    other = 100 + (loopback - 100 + 52) % 100
    theirs = Domain(other, domain.configuration(interfaces=""))
    with pytest.raises(BusError, match="already in use in this process"):
        open_node("n", domain=other)
    delete(theirs)
    open_node("n", domain=other).close()  # the failed attempt left nothing open


def test_other_versions_of_cyclonedds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ("0.10.5", "12.0.0"):
        monkeypatch.setattr(domain, "version", lambda _, found=found: found)
        with pytest.raises(BusError, match="cyclonedds>=11.0.1,<12"):
            domain.check_version()


def test_fork_is_refused(loopback: int) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with open_node("parent"):
        child = context.Process(target=_in_child, args=(theirs,))
        child.start()
        assert ours.poll(10) and "spawn" in ours.recv()
        child.join(10)


def _in_child(pipe: multiprocessing.connection.Connection) -> None:
    try:
        open_node("child")
        pipe.send("opened")
    except BusError as error:
        pipe.send(str(error))
    os._exit(0)  # no exit handlers of the parent's DDS
