"""`ros_discovery_info`: announce our nodes to `ros2 node list`, and read the others' announcements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rosbags.typesys.store import Typestore

TOPIC = "ros_discovery_info"
TYPE = "rmw_dds_common/msg/ParticipantEntitiesInfo"
_KEPT = 1000  # participants remembered; every `ros2 topic echo` is one, and a robot runs for months


@dataclass
class Entry:
    """One node and its endpoints, by 16-byte RTPS GUID in network order."""

    namespace: str
    name: str
    readers: list[bytes] = field(default_factory=list)
    writers: list[bytes] = field(default_factory=list)


def graph_bytes(participant: bytes, nodes: Iterable[Entry], store: Typestore) -> bytes:
    """Encode a participant's whole message, as sent at each change.

    The gid has the store's size: 16 bytes, or 24 up to Humble, there padded with zeros.
    """
    gid_field: Any = store.fielddefs["rmw_dds_common/msg/Gid"][1][0][1]
    size: int = gid_field[1][1]
    types: Any = store.types

    def gid(guid: bytes) -> Any:
        return types["rmw_dds_common/msg/Gid"](np.frombuffer(guid.ljust(size, b"\0"), np.uint8))

    info = types["rmw_dds_common/msg/NodeEntitiesInfo"]
    entries = [info(n.namespace, n.name, [gid(g) for g in n.readers], [gid(g) for g in n.writers]) for n in nodes]
    raw = bytes(store.serialize_cdr(types[TYPE](gid(participant), entries), TYPE, little_endian=True))
    return raw + bytes(-len(raw) % 4)


class Graph:
    """Announcements of the other participants; unreadable messages are ignored."""

    def __init__(self, store: Typestore) -> None:
        self._store = store
        self._nodes: dict[bytes, list[Entry]] = {}

    def update(self, raw: bytes) -> None:
        """Store a participant's message, which replaces its last one."""
        try:
            info: Any = self._store.deserialize_cdr(raw, TYPE)
        except Exception:  # from another distro: its gids have another size; topics still flow
            return
        key = bytes(info.gid.data[:16])
        self._nodes.pop(key, None)
        self._nodes[key] = [
            Entry(
                n.node_namespace,
                n.node_name,
                [bytes(g.data[:16]) for g in n.reader_gid_seq],
                [bytes(g.data[:16]) for g in n.writer_gid_seq],
            )
            for n in info.node_entities_info_seq
        ]
        while len(self._nodes) > _KEPT:
            self._nodes.pop(next(iter(self._nodes)))

    def entries(self) -> list[Entry]:
        """List the nodes announced, those of participants that left since included."""
        return [entry for entries in list(self._nodes.values()) for entry in entries]


def owner(guid: bytes, entries: Iterable[Entry]) -> str:
    """Return the full name of the node of an endpoint."""
    for entry in entries:
        if guid in entry.readers or guid in entry.writers:
            return f"{entry.namespace.rstrip('/')}/{entry.name}"
    return f"an unnamed DDS participant ({guid[:12].hex()})"
