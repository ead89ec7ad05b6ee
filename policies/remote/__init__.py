"""Policy servers and clients in openpi's websocket protocol; a client has the interface of a local policy.

::

    server -> client    metadata: a dict, with our contract under "robot_rl"
    client -> server    observation: a dict of arrays, with our options (see `policies.remote.request`)
    server -> client    {"actions": (horizon, A), "server_timing": {...}}, or an error as text before it disconnects

Every message is msgpack (`policies.remote.packing`). openpi: github.com/Physical-Intelligence/openpi, Apache-2.0.
"""

import re
from pathlib import Path

LARGEST = 2**26
"""Largest size of a message, bytes."""


def address_of(source: Path | str) -> str:
    """Return the server address in an argument, or "" if it names a folder. A Path has lost one slash of "ws://"."""
    found = re.fullmatch(r"ws:/{1,2}(?P<rest>.*)", str(source))
    return f"ws://{found['rest']}" if found else ""
