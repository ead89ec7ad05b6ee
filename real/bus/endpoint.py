"""DDS readers and writers of CDR bytes: matched peers, mismatches of type and QoS, delivery in the reader thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cyclonedds._clayer import ddspy_take, ddspy_write, ddspy_write_ts
from cyclonedds.core import DDSException, DDSStatus, ReadCondition
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader

from real import clock
from real.bus.names import BusError, dds_topic, dds_type
from real.bus.participant import ANY, delete, to_dds
from real.bus.qos import QoS
from real.bus.watch import Watch

if TYPE_CHECKING:
    from real.bus.dds import DdsNode

DEPTH = 16
"""Smallest depth of a reader in lockstep, where other processes may be a tick ahead."""
UNSIGNED = 0xFFFFFFFFFFFFFFFF  # cyclonedds returns some handles signed and others unsigned
_POLICIES = {  # DDS policy id: its name, and the remedy for incompatible peers
    2: ("durability", "give both sides the same transient_local, or subscribe with transient_local=False"),
    4: ("deadline", "request no deadline that the publisher does not offer"),
    6: ("ownership", "use shared ownership, as ROS does"),
    8: ("liveliness", "use automatic liveliness, as ROS does"),
    11: ("reliability", "subscribe with reliable=False (qos.SENSOR), or publish with reliable=True"),
    23: ("data representation", "use plain CDR (XCDR1) and final types, as ROS does"),
}


class Endpoint:
    """Common part of a writer and a reader: matched peers, QoS mismatches, GUID."""

    roles = ("subscription", "publisher")
    """What this endpoint and its peers are called in messages."""

    def __init__(self, owner: DdsNode, topic: str, type_name: str, entity: Any, writer: bool, wire: str) -> None:
        self.owner, self.topic, self.type_name = owner, topic, type_name
        self.entity, self.writer = entity, writer
        self.wire = wire
        """Name of the DDS topic."""
        self.guid: bytes = entity.guid.bytes
        self.policies: set[int] = set()
        self.closed = False
        self.on_change: Callable[[], None] | None = None
        """Called in the reader thread after peers have come or left."""
        mask = DDSStatus.PublicationMatched | DDSStatus.OfferedIncompatibleQos
        entity.set_status_mask(mask if writer else DDSStatus.SubscriptionMatched | DDSStatus.RequestedIncompatibleQos)
        self._token = owner.participant.watch.attach(entity, self._on_status)
        self._on_status()  # peers in this process match before the mask is set

    def handles(self) -> list[int]:
        """Return the instance handles of the matched peers."""
        if self.closed:
            return []
        entity = self.entity
        try:
            return entity.get_matched_subscriptions() if self.writer else entity.get_matched_publications()
        except DDSException:
            if self.closed:  # meanwhile, by another thread
                return []
            raise

    def matched(self) -> dict[int, Any]:
        """Return the description of each matched peer by its instance handle; None until the reader thread has it."""
        # Not from `get_matched_publication_data`: cyclonedds converts QoS in buffers that all threads share.
        kind = "readers" if self.writer else "writers"
        peers = self.owner.participant.endpoints(kind, self.wire)
        known = {peer.sample_info.instance_handle & UNSIGNED: peer for peer in peers}
        return {handle: known.get(handle) for handle in (h & UNSIGNED for h in self.handles())}

    def _on_status(self) -> None:
        if self.writer:
            self.entity.get_publication_matched_status()  # reading a status re-arms it
            status = self.entity.get_offered_incompatible_qos_status()
        else:
            self.entity.get_subscription_matched_status()
            status = self.entity.get_requested_incompatible_qos_status()
        if status.total_count_change > 0:
            self.policies.add(status.last_policy_id)
        self.owner.participant.notify()
        if self.on_change is not None:
            self.on_change()

    def peers(self, kind: str, process: bool = False) -> list[str]:
        """Return the full node name of each of the topic's "writers" or "readers" (`kind`), except this endpoint's.
        `process` adds process, host and GUID."""
        participant = self.owner.participant
        return sorted(
            participant.owner(e.key.bytes) + (f" ({participant.process(e)})" if process else "")
            for e in participant.endpoints(kind, self.wire)
            if e.key.bytes != self.guid
        )

    def complaints(self) -> list[str]:
        """Return a message for each incompatible type or QoS policy on this topic: it names peer, reason and remedy."""
        participant = self.owner.participant
        peers = participant.endpoints("readers" if self.writer else "writers", self.wire)
        # Another endpoint of this node on the topic may match a peer that this endpoint cannot.
        siblings = [e for e in self.owner.endpoints() if (e.wire, e.writer) == (self.wire, self.writer)]
        types = {dds_type(e.type_name) for e in siblings}
        matched = {h & UNSIGNED for endpoint in siblings for h in endpoint.handles()}
        ours, theirs = self.roles
        messages, unmatched = [], set()
        for peer in peers:
            name, handle = participant.owner(peer.key.bytes), peer.sample_info.instance_handle & UNSIGNED
            if peer.type_name not in types:
                messages.append(
                    f"{ours} on {self.topic} uses {self.type_name}, but the {theirs} {name} uses"
                    f" {peer.type_name}: nothing passes. Use the same type, or another topic."
                )
            elif peer.type_name == dds_type(self.type_name) and handle not in matched:
                unmatched.add(name)
        for policy in sorted(self.policies):
            if (policy not in _POLICIES and messages) or (len(siblings) > 1 and not unmatched):
                continue  # the type was reported above, or another endpoint of this node matches the peer
            unknown = (f"the type (policy {policy})", "define the type alike on both sides")
            subject, remedy = _POLICIES.get(policy, unknown)
            names = ", ".join(sorted(unmatched)) or "a peer that has left"
            messages.append(
                f"{ours} on {self.topic} and the {theirs} {names} disagree on {subject}: nothing passes."
                f" To repair, {remedy}."
            )
        return messages

    def delete(self) -> None:
        self.closed = True
        self.owner.participant.watch.detach(self.entity, self._token)
        delete(self.entity)


class Writer(Endpoint):
    """Writer of CDR bytes. ``wire``: name of its DDS topic; ``user_data``: announced to peers."""

    roles = ("publisher", "subscription of")

    def __init__(
        self, owner: DdsNode, topic: str, type_name: str, qos: QoS, wire: str = "", user_data: str = ""
    ) -> None:
        dds, wire = owner.participant, wire or dds_topic(topic)
        policies = to_dds(qos, type_name, writer=True, user_data=user_data)
        writer = DataWriter(dds.dds, dds.topic(wire, type_name), policies)
        self._ref = writer._ref
        super().__init__(owner, topic, type_name, writer, True, wire)

    def write(self, raw: bytes | memoryview, now: float | None = None) -> bool:
        """Write CDR bytes; return False if a reliable reader blocked the writer for its blocking time. ``now``: time of
        publication, s; default: the machine's."""
        if self.closed:
            raise BusError(f"{self.topic}: this {self.roles[0]} is closed; open another")
        code = ddspy_write(self._ref, raw) if now is None else ddspy_write_ts(self._ref, raw, round(1e9 * now))
        if code < 0 and code != DDSException.DDS_RETCODE_TIMEOUT:
            raise BusError(f"publishing {len(raw)} bytes on {self.topic} failed: {DDSException(code, '')}")
        return code >= 0


OnBytes = Callable[[bytes, Any], None]
"""Handler of received bytes and of Cyclone's sample info."""


class Reader(Endpoint):
    """Reader of CDR bytes; the participant's thread passes them to ``on_bytes``. Other arguments as for `Writer`."""

    def __init__(
        self, owner: DdsNode, topic: str, type_name: str, qos: QoS, on_bytes: OnBytes, wire: str = "",
        user_data: str = "",
    ) -> None:  # fmt: skip
        dds, wire = owner.participant, wire or dds_topic(topic)
        if clock.in_lockstep():  # a sample of the next tick must not replace one of this tick
            qos = replace(qos, depth=max(qos.depth, DEPTH))
        policies = to_dds(qos, type_name, writer=False, user_data=user_data)
        reader = DataReader(dds.dds, dds.topic(wire, type_name), policies)
        self._ref, self._on_bytes = reader._ref, on_bytes
        self._taking = threading.Lock()
        self._batch = min(qos.depth, 64)
        super().__init__(owner, topic, type_name, reader, False, wire)
        # Unlike the data-available status, a read condition stays triggered until all samples are taken.
        self._condition = ReadCondition(reader, ANY)
        self._watch = dds.watch
        self._data_token = self._watch.attach(self._condition, self.take)

    def move(self, watch: Watch) -> None:
        """Take samples when another watch runs."""
        self._watch.detach(self._condition, self._data_token)
        self._watch = watch
        self._data_token = watch.attach(self._condition, self.take)

    def take_alone(self) -> None:
        """Take samples only in the thread that calls `poll`."""
        self.move(Watch(self.owner.participant.dds))

    def poll(self, timeout: float) -> None:
        """Wait up to `timeout` s for samples and take them; raise BusError after `delete`."""
        if self.closed or not self._watch.run(round(1e9 * timeout)):
            raise BusError(f"{self.topic}: this subscription is closed")

    def take(self) -> None:
        """Pass the bytes that have arrived on."""
        with self._taking:
            samples = ddspy_take(self._ref, ANY, self._batch)
            for raw, info in samples if isinstance(samples, list) else ():
                if info.valid_data:
                    self._on_bytes(raw, info)

    def delete(self) -> None:
        self.closed = True
        dds = self.owner.participant
        if self in dds.readers:
            dds.readers.remove(self)
        self._watch.detach(self._condition, self._data_token)
        if self._watch not in (dds.watch, dds.lockstep):
            self._watch.delete()
        delete(self._condition)
        super().delete()
