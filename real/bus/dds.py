"""DDS backend: CycloneDDS from PyPI with ROS 2's wire format. It works on machines without ROS 2."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cyclonedds.core import DDSException

from real import clock
from real.bus.dds_service import DdsClient, DdsService
from real.bus.domain import domain_id
from real.bus.endpoint import Endpoint, Reader, Writer
from real.bus.graph import Entry
from real.bus.names import BusError
from real.bus.node import Node, OnSample, Publisher, Subscription
from real.bus.participant import Participant, acquire, release
from real.bus.qos import QoS
from real.bus.rosargs import RosArgs
from real.bus.service import Client, Handler, Service


class DdsPublisher(Publisher):
    """Publisher with a Cyclone writer."""

    def __init__(self, owner: DdsNode, type_name: str, topic: str, qos: QoS) -> None:
        super().__init__(type_name, topic, qos)
        self.endpoint = Writer(owner, topic, type_name, qos)
        self.ends = (self.endpoint,)

    @property
    def matched(self) -> int:
        return len(self.endpoint.handles())

    def readers(self) -> list[str]:
        return self.endpoint.peers("readers")

    def other_writers(self, process: bool = False) -> list[str]:
        return self.endpoint.peers("writers", process)

    def close(self) -> None:
        self.endpoint.owner.drop(self)

    def _write(self, raw: bytes | memoryview) -> bool:
        # A lifespan is of the machine's time.
        return self.endpoint.write(raw, None if self.qos.lifespan else clock.published(self.topic))


class DdsSubscription(Subscription):
    """Subscription with a Cyclone reader; the participant's thread delivers samples."""

    def __init__(self, owner: DdsNode, type_name: str, topic: str, qos: QoS, callback: OnSample) -> None:
        super().__init__(type_name, topic, qos, callback, owner._logger)
        self.endpoint = Reader(owner, topic, type_name, qos, self._on_bytes)
        self.ends = (self.endpoint,)
        owner.participant.add(self.endpoint)
        clock.listen(topic, id(self), True)

    def _on_bytes(self, raw: bytes, info: Any) -> None:
        self._arrive(raw, info.source_timestamp)

    @property
    def matched(self) -> int:
        return len(self.endpoint.handles())

    def writers(self, process: bool = False) -> list[str]:
        return self.endpoint.peers("writers", process)

    def close(self) -> None:
        clock.listen(self.topic, id(self), False)
        self.endpoint.owner.drop(self)

    def set_at_once(self) -> None:
        super().set_at_once()
        clock.listen(self.topic, id(self), False)
        self.endpoint.owner.participant.readers.remove(self.endpoint)
        self.endpoint.take_alone()

    def poll(self, timeout: float) -> None:
        self.endpoint.poll(timeout)


class DdsNode(Node):
    """Node of the ROS graph with CycloneDDS, without ROS 2."""

    def __init__(self, args: RosArgs, domain: int | None) -> None:
        self.closed = False
        self.participant: Participant = acquire(domain_id(domain))
        self._endpoints: list[Any] = []  # publishers, subscriptions, services and clients
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
        return self._add(lambda: DdsPublisher(self, type_name, topic, qos))

    def _subscribe(self, type_name: str, topic: str, qos: QoS, callback: OnSample) -> Subscription:
        return self._add(lambda: DdsSubscription(self, type_name, topic, qos, callback))

    def _service(self, type_name: str, name: str, handler: Handler, qos: QoS) -> Service:
        return self._add(lambda: DdsService(self, type_name, name, handler, qos))

    def _client(self, type_name: str, name: str, qos: QoS) -> Client:
        return self._add(lambda: DdsClient(self, type_name, name, qos))

    def _add(self, build: Callable[[], Any]) -> Any:
        if self.closed:
            raise BusError("this node is closed; open another")
        try:
            with self.participant.lock:
                built = build()
                self._endpoints.append(built)
                for end in built.ends:
                    self._guids(end).append(end.guid)
        except DDSException as error:
            raise BusError(f"DDS refused the endpoint: {error}. Is its name below 240 characters?") from error
        self.participant.announce()
        return built

    def _guids(self, end: Endpoint) -> list[bytes]:
        return self._entry.writers if end.writer else self._entry.readers

    def drop(self, item: Any) -> None:
        """Delete a publisher, subscription, service or client of this node and announce that to all participants."""
        with self.participant.lock:
            if item not in self._endpoints:
                return
            self._endpoints.remove(item)
            for end in item.ends:
                self._guids(end).remove(end.guid)
                end.delete()
        self.participant.announce()

    def delivers(self) -> bool:
        return threading.current_thread() is self.participant.thread

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        with self.participant.changed:
            return bool(self.participant.changed.wait_for(predicate, timeout))

    @property
    def source(self) -> Participant:
        return self.participant

    def endpoints(self) -> list[Endpoint]:
        """Return this node's endpoints."""
        return [end for item in list(self._endpoints) for end in item.ends]

    def incompatible(self) -> list[str]:
        return list(dict.fromkeys(message for endpoint in self.endpoints() for message in endpoint.complaints()))

    def close(self) -> None:
        with self._closing:
            if self.closed:
                return
            self.closed = True
        self._stop_serving()
        participant = self.participant
        with participant.lock:
            if self._entry in participant.entries:
                participant.entries.remove(self._entry)
            for item in self._endpoints:
                if isinstance(item, DdsSubscription):
                    clock.listen(item.topic, id(item), False)
                for end in item.ends:
                    end.delete()
            self._endpoints.clear()
        if participant.users > 1:
            participant.announce()
        release(participant)
