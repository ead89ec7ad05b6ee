"""Policies behind a socket, in openpi's websocket protocol: a client that acts as a local policy does, and a server.

::

    server -> client    metadata: a dict, with our contract under "robot_rl"
    client -> server    observation: a dict of arrays, and our options (see `policies.remote.request`)
    server -> client    {"actions": (horizon, A), "server_timing": {...}}, or an error as text, and the end

Every message is msgpack (`policies.remote.packing`). openpi: github.com/Physical-Intelligence/openpi, Apache-2.0.
"""

from __future__ import annotations

import re
from pathlib import Path

LARGEST = 2**26
"""Size of a message at most, bytes."""


def address_of(source: Path | str) -> str:
    """Return the address that a command line means, "" for a folder; a Path has lost one of the slashes."""
    found = re.fullmatch(r"ws:/{1,2}(?P<rest>.*)", str(source))
    return f"ws://{found['rest']}" if found else ""
