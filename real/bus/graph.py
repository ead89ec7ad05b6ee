"""Topic `ros_discovery_info`: encode our nodes for `ros2 node list`, and decode other participants' announcements."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rosbags.typesys.store import Typestore

from real.bus.names import qualified

TOPIC = "ros_discovery_info"
TYPE = "rmw_dds_common/msg/ParticipantEntitiesInfo"
_KEPT = 1000  # participants kept; each `ros2 topic echo` adds one, and a robot may run for months


@dataclass
class Entry:
    """A node and the 16-byte RTPS GUIDs of its endpoints, in network order."""

    namespace: str
    name: str
    readers: list[bytes] = field(default_factory=list)
    writers: list[bytes] = field(default_factory=list)


def graph_bytes(participant: bytes, nodes: Iterable[Entry], store: Typestore) -> bytes:
    """Encode a participant's message with all its `nodes`. A gid has the size that `store` defines: 16 bytes since
    Iron, 24 bytes (padded with zeros) up to Humble."""
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
    """Nodes that other participants have announced. Unreadable announcements are ignored."""

    def __init__(self, store: Typestore) -> None:
        self._store = store
        self._nodes: dict[bytes, list[Entry]] = {}

    def update(self, raw: bytes) -> None:
        """Replace the nodes of a participant by those in its new message `raw`, CDR bytes."""
        try:
            info: Any = self._store.deserialize_cdr(raw, TYPE)
        except Exception:  # another distro's gids have another size; its topics work nevertheless
            return

        def guids(sequence: Any) -> list[bytes]:
            return [bytes(g.data[:16]) for g in sequence]

        key = bytes(info.gid.data[:16])
        nodes = {other: entries for other, entries in self._nodes.items() if other != key}
        nodes[key] = [
            Entry(n.node_namespace, n.node_name, guids(n.reader_gid_seq), guids(n.writer_gid_seq))
            for n in info.node_entities_info_seq
        ]
        while len(nodes) > _KEPT:
            nodes.pop(next(iter(nodes)))
        self._nodes = nodes  # at once: other threads look for names meanwhile

    def entries(self) -> list[Entry]:
        """Return the announced nodes, including those of participants that have left."""
        return [entry for entries in list(self._nodes.values()) for entry in entries]


def owner(guid: bytes, entries: Iterable[Entry]) -> str:
    """Return the full name of the node with the endpoint `guid`; without a node, a text with the participant's GUID."""
    for entry in entries:
        if guid in entry.readers or guid in entry.writers:
            return qualified(entry.name, entry.namespace)
    return f"an unnamed DDS participant ({guid[:12].hex()})"
