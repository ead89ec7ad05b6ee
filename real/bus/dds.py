"""DDS backend: CycloneDDS from PyPI with ROS 2's wire format. It works on machines without ROS 2."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cyclonedds._clayer import ddspy_take, ddspy_write, ddspy_write_ts
from cyclonedds.core import DDSException, DDSStatus, ReadCondition, WaitSet
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader

from real import clock
from real.bus.domain import domain_id
from real.bus.graph import Entry
from real.bus.names import BusError, dds_topic, dds_type
from real.bus.node import Node, OnSample, Publisher, Subscription
from real.bus.participant import ANY, Participant, acquire, delete, release, to_dds
from real.bus.qos import QoS
from real.bus.rosargs import RosArgs

DEPTH = 16
"""Smallest depth of a reader in lockstep, where other processes may be a tick ahead."""
_UNSIGNED = 0xFFFFFFFFFFFFFFFF  # cyclonedds returns some handles signed and others unsigned
_POLICIES = {  # DDS policy id: its name, and the remedy for incompatible peers
    2: ("durability", "give both sides the same transient_local, or subscribe with transient_local=False"),
    4: ("deadline", "request no deadline that the publisher does not offer"),
    6: ("ownership", "use shared ownership, as ROS does"),
    8: ("liveliness", "use automatic liveliness, as ROS does"),
    11: ("reliability", "subscribe with reliable=False (qos.SENSOR), or publish with reliable=True"),
    23: ("data representation", "use plain CDR (XCDR1) and final types, as ROS does"),
}


class _Endpoint:
    """Common part of a DDS publisher and a DDS subscription: matched peers, QoS mismatches, GUID."""

    def __init__(self, owner: DdsNode, topic: str, type_name: str, entity: Any, writer: bool) -> None:
        self.owner, self.topic, self.type_name = owner, topic, type_name
        self.entity, self.writer = entity, writer
        self.guid: bytes = entity.guid.bytes
        self.policies: set[int] = set()
        self.closed = False
        mask = DDSStatus.PublicationMatched | DDSStatus.OfferedIncompatibleQos
        entity.set_status_mask(mask if writer else DDSStatus.SubscriptionMatched | DDSStatus.RequestedIncompatibleQos)
        self._token = owner.participant.attach(entity, self._on_status)
        self._on_status()  # peers in this process match before the mask is set

    def handles(self) -> list[int]:
        """Return the instance handles of the matched peers."""
        if self.closed:
            return []
        entity = self.entity
        return entity.get_matched_subscriptions() if self.writer else entity.get_matched_publications()

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

    def peers(self, kind: str, process: bool = False) -> list[str]:
        """Return the full node name of each of the topic's "writers" or "readers" (`kind`), except this endpoint's.
        `process` adds process, host and GUID."""
        participant = self.owner.participant
        return sorted(
            participant.owner(e.key.bytes) + (f" ({participant.process(e)})" if process else "")
            for e in participant.endpoints(kind, dds_topic(self.topic))
            if e.key.bytes != self.guid
        )

    def complaints(self) -> list[str]:
        """Return a message for each incompatible type or QoS policy on this topic: it names peer, reason and remedy."""
        participant = self.owner.participant
        peers = participant.endpoints("readers" if self.writer else "writers", dds_topic(self.topic))
        # Another endpoint of this node on the topic may match a peer that this endpoint cannot.
        siblings = [e for e in self.owner.endpoints() if (e.topic, e.writer) == (self.topic, self.writer)]
        types = {dds_type(e.type_name) for e in siblings}
        matched = {h & _UNSIGNED for endpoint in siblings for h in endpoint.handles()}
        ours, theirs = ("publisher", "subscription of") if self.writer else ("subscription", "publisher")
        messages, unmatched = [], set()
        for peer in peers:
            name, handle = participant.owner(peer.key.bytes), peer.sample_info.instance_handle & _UNSIGNED
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
        self.owner.participant.detach(self.entity, self._token)
        delete(self.entity)


class DdsPublisher(Publisher):
    """Publisher with a Cyclone writer."""

    def __init__(self, owner: DdsNode, type_name: str, topic: str, qos: QoS) -> None:
        super().__init__(type_name, topic, qos)
        dds = owner.participant
        writer = DataWriter(dds.dds, dds.topic(dds_topic(topic), type_name), to_dds(qos, type_name, writer=True))
        self.endpoint = _Endpoint(owner, topic, type_name, writer, writer=True)
        self._ref = writer._ref

    @property
    def matched(self) -> int:
        return len(self.endpoint.handles())

    def readers(self) -> list[str]:
        return self.endpoint.peers("readers")

    def other_writers(self, process: bool = False) -> list[str]:
        return self.endpoint.peers("writers", process)

    def close(self) -> None:
        self.endpoint.owner.drop(self)

    def delete(self) -> None:
        self.endpoint.delete()

    def _write(self, raw: bytes | memoryview) -> bool:
        if self.endpoint.closed:
            raise BusError(f"{self.topic}: this publisher is closed; open another")
        now = None if self.qos.lifespan else clock.published()  # a lifespan is of the machine's time
        code = ddspy_write(self._ref, raw) if now is None else ddspy_write_ts(self._ref, raw, round(1e9 * now))
        if code < 0 and code != DDSException.DDS_RETCODE_TIMEOUT:
            raise BusError(f"publishing {len(raw)} bytes on {self.topic} failed: {DDSException(code, '')}")
        return code >= 0


class DdsSubscription(Subscription):
    """Subscription with a Cyclone reader; the participant's thread delivers samples."""

    def __init__(self, owner: DdsNode, type_name: str, topic: str, qos: QoS, callback: OnSample) -> None:
        super().__init__(type_name, topic, qos, callback, owner._logger)
        dds = owner.participant
        if clock.in_lockstep():  # a sample of the next tick must not replace one of this tick
            qos = replace(qos, depth=max(qos.depth, DEPTH))
        reader = DataReader(dds.dds, dds.topic(dds_topic(topic), type_name), to_dds(qos, type_name, writer=False))
        self._ref = reader._ref
        self._batch = min(qos.depth, 64)
        self.endpoint = _Endpoint(owner, topic, type_name, reader, writer=False)
        # Unlike the data-available status, a read condition stays triggered until all samples are taken.
        self._condition = ReadCondition(reader, ANY)
        self._taking = threading.Lock()
        self._own: WaitSet | None = None
        """Wait set for `poll`."""
        self._token = dds.attach(self._condition, self.take)

    @property
    def matched(self) -> int:
        return len(self.endpoint.handles())

    def writers(self, process: bool = False) -> list[str]:
        return self.endpoint.peers("writers", process)

    def close(self) -> None:
        self.endpoint.owner.drop(self)

    def listen(self, alone: bool) -> None:
        """Take samples in the participant's thread, or only when `take` is called."""
        dds = self.endpoint.owner.participant
        if alone and not self._token:
            self._token = dds.attach(self._condition, self.take)
        elif not alone and self._token:
            dds.detach(self._condition, self._token)
            self._token = 0

    def set_at_once(self) -> None:
        super().set_at_once()
        self.listen(False)
        self._own = WaitSet(self.endpoint.owner.participant.dds)
        self._own.attach(self._condition)

    def poll(self, timeout: float) -> None:
        if self._own is None or self.endpoint.closed:
            raise BusError(f"{self.topic}: this subscription is closed")
        with suppress(DDSException):  # the wait set is deleted while this waits
            self._own.wait(round(1e9 * timeout))
        if not self.endpoint.closed:
            self.take()

    def take(self) -> None:
        """Take and deliver the samples that have arrived."""
        with self._taking:
            samples = ddspy_take(self._ref, ANY, self._batch)
            for raw, info in samples if isinstance(samples, list) else ():
                if info.valid_data:
                    self._arrive(raw, info.source_timestamp)

    def delete(self) -> None:
        if self._token:
            self.endpoint.owner.participant.detach(self._condition, self._token)
        if self._own is not None:
            delete(self._own)
        delete(self._condition)
        self.endpoint.delete()


class DdsNode(Node):
    """Node of the ROS graph with CycloneDDS, without ROS 2."""

    def __init__(self, args: RosArgs, domain: int | None) -> None:
        self.closed = False
        self.participant: Participant = acquire(domain_id(domain))
        self._endpoints: list[DdsPublisher | DdsSubscription] = []
        self._closing = threading.Lock()
        self._entry = Entry(args.namespace, args.name)
        try:
            with self.participant.lock:
                self.participant.entries.append(self._entry)
            super().__init__(args)
        except BaseException:
            self.close()
            raise

    def _publisher(self, type_name: str, topic: str, qos: QoS) -> Publisher:
        return self._add(lambda: DdsPublisher(self, type_name, topic, qos), self._entry.writers)

    def _subscribe(self, type_name: str, topic: str, qos: QoS, callback: OnSample) -> Subscription:
        return self._add(lambda: DdsSubscription(self, type_name, topic, qos, callback), self._entry.readers)

    def _add(self, build: Callable[[], Any], guids: list[bytes]) -> Any:
        if self.closed:
            raise BusError("this node is closed; open another")
        try:
            with self.participant.lock:
                built = build()
                self._endpoints.append(built)
                guids.append(built.endpoint.guid)
        except DDSException as error:
            raise BusError(f"DDS refused the endpoint: {error}. Is its name below 240 characters?") from error
        self.participant.announce()
        return built

    def drop(self, item: DdsPublisher | DdsSubscription) -> None:
        """Delete a publisher or subscription of this node and announce the change to all participants."""
        with self.participant.lock:
            if item not in self._endpoints:
                return
            self._endpoints.remove(item)
            guids = self._entry.writers if item.endpoint.writer else self._entry.readers
            guids.remove(item.endpoint.guid)
            item.delete()
        self.participant.announce()

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        with self.participant.changed:
            return bool(self.participant.changed.wait_for(predicate, timeout))

    def drain(self) -> None:
        for item in list(self._endpoints):
            if isinstance(item, DdsSubscription) and not (item.at_once or item.endpoint.closed):
                item.take()

    def listen(self, alone: bool) -> None:
        for item in list(self._endpoints):
            if isinstance(item, DdsSubscription) and not (item.at_once or item.endpoint.closed):
                item.listen(alone)

    def endpoints(self) -> list[_Endpoint]:
        """Return this node's endpoints."""
        return [item.endpoint for item in list(self._endpoints)]

    def incompatible(self) -> list[str]:
        return list(dict.fromkeys(message for endpoint in self.endpoints() for message in endpoint.complaints()))

    def close(self) -> None:
        with self._closing:
            if self.closed:
                return
            self.closed = True
        participant = self.participant
        with participant.lock:
            if self._entry in participant.entries:
                participant.entries.remove(self._entry)
            for item in self._endpoints:
                item.delete()
            self._endpoints.clear()
        if participant.users > 1:
            participant.announce()
        release(participant)
