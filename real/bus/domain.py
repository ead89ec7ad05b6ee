"""Start CycloneDDS in a domain with the settings of rmw_cyclonedds: discovery range, static peers, the user's XML."""

import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from real.bus.names import BusError, BusSettingError

_INSTALL = "pip install 'cyclonedds>=11.0.1,<12', or source ROS 2"
# `lo` with multicast for discovery, as a Cyclone there announces itself by multicast alone unless told otherwise.
_LO = '<NetworkInterface name="lo" allow_multicast="spdp"/>'
SELECTIONS = (
    f'<Interfaces><NetworkInterface autodetermine="true"/>{_LO}</Interfaces>',
    f"<Interfaces>{_LO}</Interfaces>",
    "",
)
"""Interfaces with discovery range LOCALHOST: Cyclone's choice and `lo`, or `lo` alone if that is Cyclone's choice, or
none if the user's XML selects it."""
# With it, Fast DDS notices that an endpoint of ours is closed; without it, only that the whole process has left.
_INTERNAL = "<Internal><GenerateKeyhash>true</GenerateKeyhash></Internal>"
MAX_DOMAIN = 232  # RTPS port 7400 + 250 * domain must stay below 65536


def domain_id(given: int | None, env: Mapping[str, str] = os.environ) -> int:
    """Return the domain id: the argument, else ROS_DOMAIN_ID, else 0."""
    text = env.get("ROS_DOMAIN_ID") or "0" if given is None else str(given)
    if not text.isdigit() or int(text) > MAX_DOMAIN:
        source = "ROS_DOMAIN_ID" if given is None else "domain"
        raise BusSettingError(f"{source} is {text!r}: use 0 to {MAX_DOMAIN} (above 101 Linux may take its ports)")
    return int(text)


def discovery_range(env: Mapping[str, str] = os.environ) -> str:
    """Return the discovery range that the environment sets: SUBNET, LOCALHOST, OFF or SYSTEM_DEFAULT."""
    allowed = ("SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT")
    scope = env.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "SUBNET"
    if env.get("ROS_LOCALHOST_ONLY") == "1":
        scope = "LOCALHOST"
    if scope not in allowed:
        raise BusSettingError(f"ROS_AUTOMATIC_DISCOVERY_RANGE is {scope!r}: use one of {', '.join(allowed)}")
    return scope


def describe(env: Mapping[str, str] = os.environ) -> str:
    """Describe the ports and interfaces that DDS binds, and the machines that can send commands to them."""
    scope, domain = discovery_range(env), domain_id(None, env)
    first = 7400 + 250 * domain
    reach = {
        "SUBNET": "every machine on the network can join, and nobody is authenticated",
        "LOCALHOST": "found by processes of this machine only, though Cyclone binds its ports on all interfaces",
        "OFF": "each process is alone",
        "SYSTEM_DEFAULT": "as CYCLONEDDS_URI or Cyclone's defaults say",
    }[scope]
    if scope != "SYSTEM_DEFAULT" and env.get("CYCLONEDDS_URI"):
        reach += "; CYCLONEDDS_URI may change that"
    names = ", ".join(name for _, name in socket.if_nameindex())
    return (
        f"DDS on domain {domain}, discovery range {scope}: {reach}. "
        f"UDP ports {first} to {first + 75} on all addresses of {names} (docs/safety.md)"
    )


def configuration(env: Mapping[str, str] = os.environ, pid: int | None = None, interfaces: str = SELECTIONS[0]) -> str:
    """Return Cyclone's configuration: our XML, a comma, then CYCLONEDDS_URI, which takes precedence.

    `interfaces`: one of `SELECTIONS`, for discovery range LOCALHOST. ROS peers with Cyclone 0.10 send announcements to
    127.0.0.1 only; Cyclone 11 drops these unless `lo` is selected. Robot makers' programs that are bound to `lo` take
    arbitrary ports and send announcements by multicast only (both measured). No multicast leaves this machine.
    """
    scope = discovery_range(env)
    peers = static_peers(env)
    user = env.get("CYCLONEDDS_URI", "")
    if scope == "SYSTEM_DEFAULT":
        return user
    interfaces = interfaces if scope == "LOCALHOST" else ""
    multicast = "spdp" if scope == "LOCALHOST" and not interfaces and _only_lo(user) else "false"
    general = f"<General>{interfaces}<AllowMulticast>{multicast}</AllowMulticast></General>"
    general = "" if scope == "SUBNET" else general
    if scope == "OFF":
        # A tag with this process's id: no other process matches.
        tag = f"ros_discovery_off_{os.getpid() if pid is None else pid}"
        discovery = f"<ParticipantIndex>none</ParticipantIndex><Tag>{tag}</Tag>"
    else:
        # ROS peers search this range of indices and find no process beyond it.
        discovery = "<ParticipantIndex>auto</ParticipantIndex>"
        discovery += "<MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>"
        peers = (["localhost"] if scope == "LOCALHOST" else []) + peers
        if peers:
            discovery += f"<Peers>{''.join(f'<Peer address={quoteattr(p)}/>' for p in peers)}</Peers>"
    return f"<CycloneDDS><Domain>{general}<Discovery>{discovery}</Discovery>{_INTERNAL}</Domain></CycloneDDS>,{user}"


def _only_lo(uri: str) -> bool:
    """Return whether the XML in `uri` selects `lo` and no other interface."""
    selected = re.findall(r"<NetworkInterface\b[^>]*>", uri)
    return bool(selected) and all(re.search(r"""\bname\s*=\s*["']lo["']""", tag) for tag in selected)


def static_peers(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the addresses in ROS_STATIC_PEERS; none if ROS_LOCALHOST_ONLY is 1."""
    local = env.get("ROS_LOCALHOST_ONLY") == "1"
    return [] if local else [p.strip() for p in env.get("ROS_STATIC_PEERS", "").split(";") if p.strip()]


def check_peers(env: Mapping[str, str] = os.environ) -> None:
    """Raise BusSettingError for a static peer whose name has no address, as Cyclone would abort the process for it.
    Cyclone uses IPv4 unless the user's XML sets another family."""
    family = socket.AF_UNSPEC if env.get("CYCLONEDDS_URI") else socket.AF_INET
    for peer in static_peers(env) if discovery_range(env) != "SYSTEM_DEFAULT" else []:
        bare = peer.count(":") > 1 and not peer.startswith("[")  # an IPv6 address without a port
        try:
            address = urlsplit(f"//[{peer}]" if bare else f"//{peer}")
            socket.getaddrinfo(address.hostname or "", address.port, family, socket.SOCK_DGRAM)
        except (OSError, ValueError) as error:
            raise BusSettingError(
                f"ROS_STATIC_PEERS names {peer!r}, for which there is no address here ({error}): correct it, or leave "
                "it out"
            ) from None


def check_version() -> None:
    """Raise BusError for a cyclonedds version in which the private functions for raw bytes are missing or untested."""
    try:
        installed = version("cyclonedds")
        from cyclonedds import _clayer

        missing = [f for f in ("ddspy_write", "ddspy_take") if not callable(getattr(_clayer, f, None))]
    except Exception as error:
        raise BusError(f"no usable cyclonedds ({error}): {_INSTALL}") from error
    numbers = tuple(int(n) for n in installed.split(".")[:3] if n.isdigit())
    if missing or not (11, 0, 1) <= numbers < (12,):
        lack = f" and lacks {', '.join(missing)}" if missing else ""
        raise BusError(f"cyclonedds is {installed}{lack}, which is not known to carry raw bytes: {_INSTALL}")


_HINTS = {
    "participant index": "More processes use this domain on this machine than have an index (33): stop"
    " idle nodes, take another ROS_DOMAIN_ID, or raise MaxAutoParticipantIndex in every CYCLONEDDS_URI.",
    "config:": "Correct the XML in CYCLONEDDS_URI, or unset it.",
    "can't open": "Correct the path in CYCLONEDDS_URI, or unset it.",
    "interface": "Name an existing network interface in CYCLONEDDS_URI.",
    "socket": "A port is taken or not allowed: take another ROS_DOMAIN_ID.",
}


@contextmanager
def _c_stderr() -> Iterator[Callable[[], str]]:
    """Capture the stderr of C code, because Cyclone returns only "non specific error" and prints the reason."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as captured:
        saved = os.dup(2)
        os.dup2(captured.fileno(), 2)

        def text() -> str:
            captured.seek(0)
            return captured.read().decode(errors="replace")

        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def open_domain(domain: int) -> Any:
    """Create this process's Cyclone domain object; raise BusError with Cyclone's reason if DDS cannot start."""
    check_version()
    check_peers()
    from cyclonedds.core import DDSException
    from cyclonedds.domain import Domain

    def attempt(interfaces: str) -> tuple[Any, Any, str]:
        with _c_stderr() as printed:
            try:
                opened, failure = Domain(domain, configuration(interfaces=interfaces)), None
            except DDSException as error:
                opened, failure = None, error
            return opened, failure, printed()

    for interfaces in SELECTIONS if "lo" in (name for _, name in socket.if_nameindex()) else SELECTIONS[-1:]:
        opened, failure, output = attempt(interfaces)
        if failure is None or "may not be selected twice" not in output:
            break
    if failure is None:
        sys.stderr.write(output)  # warnings, and output of other threads
        return opened
    if failure.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET:
        raise BusError(
            f"DDS domain {domain} is already in use in this process, by other DDS code with its own settings:"
            " open the bus first, or use another domain."
        ) from failure
    lines = re.findall(r"^\d+\.\d+ \[\S*\]\s+\S+: (.+)$", output, re.M)
    reason = "; ".join(lines) or output.strip() or str(failure)
    default = "Check ROS_DOMAIN_ID and CYCLONEDDS_URI."
    hint = next((h for key, h in _HINTS.items() if key in reason.lower()), default)
    raise BusError(f"DDS cannot start on domain {domain}: {reason.rstrip('.')}. {hint}") from failure
