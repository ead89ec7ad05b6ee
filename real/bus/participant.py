"""The process's DDS participant in a domain, shared by its nodes: reader thread, discovery, graph, type objects."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

from cyclonedds import builtin, core
from cyclonedds._clayer import ddspy_take, ddspy_write
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import make_idl_struct
from cyclonedds.idl import types as idl
from cyclonedds.internal import dds_infinity
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from rosbags.typesys.store import Typestore

from real.bus import graph
from real.bus.domain import open_domain
from real.bus.messages import ARRAY, BASE, NAME, store, type_hash
from real.bus.names import BusError, dds_type
from real.bus.qos import QoS
from real.bus.watch import Watch

ANY = core.SampleState.Any | core.ViewState.Any | core.InstanceState.Any
_BASE: dict[str, Any] = {"bool": bool, "string": str} | {
    name: getattr(idl, name)
    for name in ("byte", "float32", "float64", *(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)))
}


_HEADER = {"guid": idl.uint64, "sequence": idl.int64}
"""What precedes the members of a service's requests and replies in rmw_cyclonedds."""


def idl_struct(type_name: str, store: Typestore, made: dict[str, Any], header: bool = False) -> Any:
    """Build the keyless, final Cyclone struct that ROS peers announce under the same name.

    Discovery compares the struct's name and members; rosbags encodes the data. A struct without annotation is final.
    `@appendable` would switch the payload to XCDR2, which ROS does not read. ``made`` caches structs by type name.
    ``header``: with the header of services, as Cyclone refuses bytes that do not fit the struct.
    """

    def member(desc: Any) -> Any:
        kind, rest = desc
        if kind == BASE:
            name, bound = rest
            return idl.bounded_str[bound] if name == "string" and bound else _BASE[name]
        if kind == NAME:
            return idl_struct(rest, store, made)
        inner, length = member(rest[0]), rest[1]
        if kind == ARRAY:
            return idl.array[inner, length]
        return idl.sequence[inner, length] if length else idl.sequence[inner]

    key = f"{type_name} with header" if header else type_name
    if key not in made:
        members = {name: member(desc) for name, desc in store.fielddefs[type_name][1]}
        name = dds_type(type_name).replace("::", ".")
        made[key] = make_idl_struct(name.rsplit(".", 1)[1], name, (_HEADER if header else {}) | members)
    return made[key]


def to_dds(qos: QoS, type_name: str, writer: bool, keep_all: bool = False, user_data: str = "") -> Any:
    """Return the DDS QoS that rmw_cyclonedds would use, except that the blocking time is finite. ``user_data`` precedes
    the type's hash."""
    keep = Policy.History.KeepAll if keep_all else Policy.History.KeepLast(qos.depth)
    reliable = Policy.Reliability.Reliable(int(qos.blocking * 1e9))
    policies = [
        keep,
        reliable if qos.reliable else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if qos.transient_local else Policy.Durability.Volatile,
        Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False),
        Policy.Userdata(f"{user_data}typehash={type_hash(type_name)};".encode()),
    ]
    if writer:
        policies.append(Policy.WriterDataLifecycle(autodispose=False))
        if qos.transient_local:  # Cyclone's depth for late joiners is in this policy, not in the history
            policies.append(Policy.DurabilityService(0, keep, -1, -1, -1))
        if qos.lifespan is not None:
            policies.append(Policy.Lifespan(int(qos.lifespan * 1e9)))
    elif keep_all:
        policies.append(Policy.IgnoreLocal.Participant)
    return Qos(*policies)


def delete(entity: core.Entity) -> None:
    """Delete a DDS entity now, not at the next garbage collection."""
    entity.__del__()


class Participant:
    """DDS participant. As in ROS 2, a process has one per domain, since each participant needs ports and discovery."""

    def __init__(self, domain: int) -> None:
        self.domain = domain
        self.lock = threading.RLock()  # guards entries and topics; never held during a callback
        self.changed = threading.Condition()  # notified at every change of the graph
        self.entries: list[graph.Entry] = []
        self.users = 0
        self.pid = os.getpid()
        self._store = store()
        self._graph = graph.Graph(self._store)
        self._types: dict[str, Any] = {}
        self._topics: dict[tuple[str, str], Topic[Any]] = {}
        self._seen: dict[str, dict[Any, builtin.DcpsEndpoint]] = {"writers": {}, "readers": {}}
        self._processes: dict[Any, builtin.DcpsParticipant] = {}
        self._stopping = False
        self._domain = open_domain(domain)
        try:
            self.dds = DomainParticipant(domain, Qos(Policy.Userdata(b"enclave=/;")))
        except core.DDSException as error:
            delete(self._domain)
            raise BusError(f"no DDS participant in domain {domain}: {error}. Is the network up?") from error
        self.watch = Watch(self.dds)
        """Wait set of the reader thread."""
        self.lockstep = Watch(self.dds)
        """Wait set of the readers that are drained once per tick in lockstep."""
        self._in_drain = False
        self.readers: list[Any] = []
        """Readers of subscriptions, which may be in the one or in the other."""
        self._guard = core.GuardCondition(self.dds)
        self.watch.attach(self._guard, lambda: self._guard.set(False))
        latched = QoS(depth=1, transient_local=True)
        topic = self.topic(graph.TOPIC, graph.TYPE)
        self._graph_writer = DataWriter(self.dds, topic, to_dds(latched, graph.TYPE, writer=True))
        self._graph_reader = DataReader(self.dds, topic, to_dds(latched, graph.TYPE, writer=False, keep_all=True))
        self._conditions: list[core.ReadCondition] = []
        self._on_samples(self._graph_reader, self._on_graph)
        for seen, topic_kind in (
            (self._seen["writers"], builtin.BuiltinTopicDcpsPublication),
            (self._seen["readers"], builtin.BuiltinTopicDcpsSubscription),
            (self._processes, builtin.BuiltinTopicDcpsParticipant),
        ):
            reader = builtin.BuiltinDataReader(self.dds, topic_kind)
            self._on_samples(reader, lambda r=reader, s=seen: self._on_discovery(r, s))  # type: ignore[misc]
        self.thread = threading.Thread(target=self._run, name=f"bus-{domain}", daemon=True)
        self.thread.start()

    def _on_samples(self, reader: Any, handler: Callable[[], None]) -> None:
        """Call the handler in the reader thread while the reader has samples."""
        self._conditions.append(core.ReadCondition(reader, ANY))
        self.watch.attach(self._conditions[-1], handler)

    def topic(self, name: str, type_name: str) -> Topic[Any]:
        """Return the DDS topic with this name and type, created at the first call."""
        with self.lock:
            key = (name, type_name)
            if key not in self._topics:
                struct = idl_struct(type_name, self._store, self._types, header=name.startswith(("rq/", "rr/")))
                self._topics[key] = Topic(self.dds, name, struct)
            return self._topics[key]

    def announce(self) -> None:
        """Publish the names and endpoints of this process's nodes to other participants."""
        with self.lock:
            raw = graph.graph_bytes(self.dds.guid.bytes, self.entries, self._store)
            ddspy_write(self._graph_writer._ref, raw)
        self.notify()

    def notify(self) -> None:
        """Wake all threads that wait for a change of the graph."""
        with self.changed:
            self.changed.notify_all()

    def endpoints(self, kind: str, dds_topic: str) -> list[builtin.DcpsEndpoint]:
        """Return the live "writers" or "readers" (`kind`) of a DDS topic, including those of this process."""
        # Discovery tells us of our own endpoints too, and only later that one was deleted: our nodes know at once.
        prefix, ours = self.dds.guid.bytes[:12], {guid for e in list(self.entries) for guid in (*e.readers, *e.writers)}
        found = [e for e in list(self._seen[kind].values()) if e.topic_name == dds_topic]
        return [e for e in found if e.key.bytes[:12] != prefix or e.key.bytes in ours]

    def owner(self, guid: bytes) -> str:
        """Return the full name of the node that has the endpoint `guid`."""
        # Without the lock: predicates of `wait_for` call this while `announce` notifies them.
        return graph.owner(guid, [*self.entries, *self._graph.entries()])

    def process(self, endpoint: builtin.DcpsEndpoint) -> str:
        """Return an endpoint's process and host, if its DDS vendor announces them, and the prefix of its GUID."""
        participant = self._processes.get(endpoint.participant_key)
        info = {p.key: p.value for p in participant.qos if isinstance(p, Policy.Property)} if participant else {}
        parts = [info.get("__ProcessName", ""), info.get("__Pid", ""), "on" if "__Hostname" in info else ""]
        known = " ".join(part for part in [*parts, info.get("__Hostname", "")] if part)
        return f"{known or 'unknown process'}, GUID {endpoint.key.bytes[:12].hex()}"

    def _on_graph(self) -> None:
        for raw, info in ddspy_take(self._graph_reader._ref, ANY, 64):
            if info.valid_data:
                self._graph.update(raw)
        self.notify()

    def _on_discovery(self, reader: builtin.BuiltinDataReader[Any], seen: dict[Any, Any]) -> None:
        """Add newly discovered peers to `seen`, and remove peers that have left."""
        for peer in reader.take(64):
            if peer.sample_info.instance_state == core.InstanceState.Alive:
                seen[peer.key] = peer
            else:
                seen.pop(peer.key, None)
        self.notify()

    def drain(self, timeout: float = 0.0) -> None:
        """Take the samples that have arrived, for lockstep; if there are none, wait up to `timeout` s for one."""
        self.lockstep.run(round(1e9 * timeout))

    def listen(self, alone: bool) -> None:
        """Take samples as they arrive; with `alone` False only in `drain`, which saves a change of threads each."""
        with self.lock:
            self._in_drain = not alone
            for reader in self.readers:
                reader.move(self.watch if alone else self.lockstep)

    def add(self, reader: Any) -> None:
        """Take note of a new subscription's reader."""
        with self.lock:
            self.readers.append(reader)
            if self._in_drain:
                reader.move(self.lockstep)

    def _run(self) -> None:
        while not self._stopping and self.watch.run(dds_infinity):
            pass

    def close(self) -> None:
        """Stop the reader thread and leave the domain."""
        self._stopping = True
        self._guard.set(True)
        if threading.current_thread() is not self.thread:
            self.thread.join(2.0)
        self.watch.delete()
        self.lockstep.delete()
        delete(self.dds)  # with all its entities
        delete(self._domain)
        self.notify()


_open: dict[int, Participant] = {}
_lock = threading.Lock()


def acquire(domain: int) -> Participant:
    """Return this process's participant of a domain, created at first use; `release` it afterwards."""
    with _lock:
        participant = _open.get(domain)
        if participant is not None and participant.pid != os.getpid():
            raise BusError("the bus was opened before a fork, which DDS does not survive: use 'spawn'")
        if participant is None:
            participant = _open[domain] = Participant(domain)
        participant.users += 1
        return participant


def release(participant: Participant) -> None:
    """End one use of a participant; the last user closes it."""
    with _lock:
        participant.users -= 1
        if participant.users == 0:
            _open.pop(participant.domain, None)
            participant.close()


@atexit.register
def _close_all() -> None:
    # Peers notice a clean exit at once, otherwise after the lease of 10 s.
    for participant in list(_open.values()):
        if participant.pid == os.getpid():
            participant.close()
    _open.clear()
