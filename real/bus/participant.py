"""The process's one DDS participant in a domain, shared by its nodes: reader thread, discovery, graph."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from cyclonedds._clayer import ddspy_take, ddspy_write
from cyclonedds.builtin import (
    BuiltinDataReader,
    BuiltinTopicDcpsParticipant,
    BuiltinTopicDcpsPublication,
    BuiltinTopicDcpsSubscription,
    DcpsEndpoint,
    DcpsParticipant,
)
from cyclonedds.core import (
    DDSException,
    Entity,
    GuardCondition,
    InstanceState,
    ReadCondition,
    SampleState,
    ViewState,
    WaitSet,
)
from cyclonedds.domain import DomainParticipant
from cyclonedds.internal import dds_infinity
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

from real.bus import graph
from real.bus.domain import open_domain
from real.bus.errors import BusError
from real.bus.idl import idl_struct
from real.bus.messages import store, type_hash
from real.bus.qos import QoS

ANY = SampleState.Any | ViewState.Any | InstanceState.Any
_SLOTS = 256  # entities reported by one wake-up; the rest come with the next
_log = logging.getLogger(__name__)


def to_dds(qos: QoS, type_name: str, writer: bool, keep_all: bool = False) -> Any:
    """Map a QoS as rmw_cyclonedds does, but with a finite blocking time."""
    keep = Policy.History.KeepAll if keep_all else Policy.History.KeepLast(qos.depth)
    reliable = Policy.Reliability.Reliable(int(qos.blocking * 1e9))
    policies = [
        keep,
        reliable if qos.reliable else Policy.Reliability.BestEffort,
        Policy.Durability.TransientLocal if qos.transient_local else Policy.Durability.Volatile,
        Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False),
        Policy.Userdata(f"typehash={type_hash(type_name)};".encode()),
    ]
    if writer:
        policies.append(Policy.WriterDataLifecycle(autodispose=False))
        if qos.transient_local:  # Cyclone keeps samples for late joiners by this policy, not by the history
            policies.append(Policy.DurabilityService(0, keep, -1, -1, -1))
        if qos.lifespan is not None:
            policies.append(Policy.Lifespan(int(qos.lifespan * 1e9)))
    elif keep_all:
        policies.append(Policy.IgnoreLocal.Participant)
    return Qos(*policies)


def delete(entity: Entity) -> None:
    """Delete a DDS entity now, not at the next garbage collection."""
    entity.__del__()


class Participant:
    """One participant per process and domain: each costs ports and discovery, and ROS 2 does the same."""

    def __init__(self, domain: int) -> None:
        self.domain = domain
        self.lock = threading.RLock()  # guards entries and topics; no callback runs under it
        self.changed = threading.Condition()  # notified at every change of the graph
        self.entries: list[graph.Entry] = []
        self.users = 0
        self.pid = os.getpid()
        self._store = store()
        self._graph = graph.Graph(self._store)
        self._types: dict[str, Any] = {}
        self._topics: dict[tuple[str, str], Topic[Any]] = {}
        self._seen: dict[str, dict[Any, DcpsEndpoint]] = {"writers": {}, "readers": {}}
        self._processes: dict[Any, DcpsParticipant] = {}
        self._handlers: dict[int, Callable[[], None]] = {}
        self._tokens = itertools.count(1)
        self._stopping = False
        self._domain = open_domain(domain)
        try:
            self.dds = DomainParticipant(domain, Qos(Policy.Userdata(b"enclave=/;")))
        except DDSException as error:
            delete(self._domain)
            raise BusError(f"no DDS participant in domain {domain}: {error}. Is the network up?") from error
        self._waitset = WaitSet(self.dds)
        self._guard = GuardCondition(self.dds)
        self.attach(self._guard, lambda: self._guard.set(False))
        latched = QoS(depth=1, transient_local=True)
        topic = self.topic(graph.TOPIC, graph.TYPE)
        self._graph_writer = DataWriter(self.dds, topic, to_dds(latched, graph.TYPE, writer=True))
        all_of_them = to_dds(latched, graph.TYPE, writer=False, keep_all=True)
        self._graph_reader = DataReader(self.dds, topic, all_of_them)
        self._graph_condition = ReadCondition(self._graph_reader, ANY)
        self.attach(self._graph_condition, self._on_graph)
        self._builtin = []
        builtins = {"writers": BuiltinTopicDcpsPublication, "readers": BuiltinTopicDcpsSubscription}
        for kind, builtin in builtins.items():
            reader = BuiltinDataReader(self.dds, builtin)
            condition = ReadCondition(reader, ANY)
            self._builtin += [reader, condition]
            self.attach(condition, lambda r=reader, k=kind: self._on_endpoint(r, k))  # type: ignore[misc]
        participants = BuiltinDataReader(self.dds, BuiltinTopicDcpsParticipant)
        joined = ReadCondition(participants, ANY)
        self._builtin += [participants, joined]
        self.attach(joined, lambda: self._on_participant(participants))
        self._thread = threading.Thread(target=self._run, name=f"bus-{domain}", daemon=True)
        self._thread.start()

    def attach(self, entity: Entity, handler: Callable[[], None]) -> int:
        """Make the reader thread call the handler when the entity triggers; return a token to detach."""
        token = next(self._tokens)
        self._handlers[token] = handler
        # The token passes through the wait set, so a wake-up identifies the entity.
        self._waitset._waitset_attach(self._waitset._ref, entity._ref, ctypes.c_void_p(token))
        return token

    def detach(self, entity: Entity, token: int) -> None:
        """Undo `attach`."""
        self._waitset._waitset_detach(self._waitset._ref, entity._ref)
        self._handlers.pop(token, None)

    def topic(self, name: str, type_name: str) -> Topic[Any]:
        """Return the DDS topic, one object for each name and type."""
        with self.lock:
            key = (name, type_name)
            if key not in self._topics:
                self._topics[key] = Topic(self.dds, name, idl_struct(type_name, self._store, self._types))
            return self._topics[key]

    def announce(self) -> None:
        """Publish all our nodes and their endpoints."""
        with self.lock:
            raw = graph.graph_bytes(self.dds.guid.bytes, self.entries, self._store)
            ddspy_write(self._graph_writer._ref, raw)
        self.notify()

    def notify(self) -> None:
        """Wake all waiters for a change of the graph."""
        with self.changed:
            self.changed.notify_all()

    def endpoints(self, kind: str, dds_topic: str) -> list[DcpsEndpoint]:
        """List the live "writers" or "readers" of a topic, our own included."""
        return [e for e in list(self._seen[kind].values()) if e.topic_name == dds_topic]

    def owner(self, guid: bytes) -> str:
        """Return the full name of the node of an endpoint."""
        # No lock: predicates of `wait_for` call this, and `announce` notifies them.
        return graph.owner(guid, [*self.entries, *self._graph.entries()])

    def process(self, endpoint: DcpsEndpoint) -> str:
        """Return the process of an endpoint as far as its vendor announces it, and the prefix of its GUID."""
        found = self._processes.get(endpoint.participant_key)
        told = {p.key: p.value for p in found.qos if isinstance(p, Policy.Property)} if found else {}
        parts = [told.get("__ProcessName", ""), told.get("__Pid", ""), "on" if "__Hostname" in told else ""]
        known = " ".join(part for part in [*parts, told.get("__Hostname", "")] if part)
        return f"{known or 'unknown process'}, GUID {endpoint.key.bytes[:12].hex()}"

    def _on_participant(self, reader: BuiltinDataReader[Any]) -> None:
        for participant in reader.take(64):
            if participant.sample_info.instance_state == InstanceState.Alive:
                self._processes[participant.key] = participant
            else:
                self._processes.pop(participant.key, None)
        self.notify()

    def _on_graph(self) -> None:
        for raw, info in ddspy_take(self._graph_reader._ref, ANY, 64):
            if info.valid_data:
                self._graph.update(raw)
        self.notify()

    def _on_endpoint(self, reader: BuiltinDataReader, kind: str) -> None:
        for endpoint in reader.take(64):
            if endpoint.sample_info.instance_state == InstanceState.Alive:
                self._seen[kind][endpoint.key] = endpoint
            else:
                self._seen[kind].pop(endpoint.key, None)
        self.notify()

    def _run(self) -> None:
        slots = (ctypes.c_void_p * _SLOTS)()
        wait, waitset = self._waitset._waitset_wait, self._waitset._ref
        while not self._stopping:
            count = wait(waitset, slots, _SLOTS, dds_infinity)
            if count < 0:
                break  # the wait set is gone: the participant was deleted under us
            for token in slots[: min(count, _SLOTS)]:
                handler = self._handlers.get(token or 0)
                if handler is None:
                    continue
                try:
                    handler()
                except Exception:  # never let the one reader thread die
                    if not self._stopping and token in self._handlers:  # deleted while it ran
                        _log.exception("bus reader thread")

    def close(self) -> None:
        """Stop the reader thread, leave the domain."""
        self._stopping = True
        self._guard.set(True)
        if threading.current_thread() is not self._thread:
            self._thread.join(2.0)
        delete(self.dds)  # takes all its entities with it
        delete(self._domain)
        self.notify()


_open: dict[int, Participant] = {}
_lock = threading.Lock()


def acquire(domain: int) -> Participant:
    """Return this process's participant of a domain, made on first use; `release` it when done."""
    with _lock:
        found = _open.get(domain)
        if found is not None and found.pid != os.getpid():
            raise BusError("the bus was opened before a fork, which DDS does not survive: use 'spawn'")
        if found is None:
            found = _open[domain] = Participant(domain)
        found.users += 1
        return found


def release(participant: Participant) -> None:
    """Release a participant; the last user closes it."""
    with _lock:
        participant.users -= 1
        last = participant.users == 0
        if last:
            _open.pop(participant.domain, None)
            participant.close()


@atexit.register
def _close_all() -> None:
    # Peers see a clean exit at once; otherwise they would wait for the lease, about 10 s.
    for participant in list(_open.values()):
        if participant.pid == os.getpid():
            participant.close()
    _open.clear()
