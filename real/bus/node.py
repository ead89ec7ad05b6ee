"""The interface of both backends: nodes, publishers, subscriptions, received samples."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from real.bus import names
from real.bus.errors import BusError
from real.bus.messages import decode, encode, make, message
from real.bus.qos import DEFAULT, ROSOUT, QoS
from real.bus.rosargs import LEVELS, RosArgs

_TO_LOGGING = {
    10: logging.DEBUG,
    20: logging.INFO,
    30: logging.WARNING,
    40: logging.ERROR,
    50: logging.CRITICAL,
}


class Stamped:
    """One received sample; ``msg`` is decoded when first read, so an unread image costs nothing."""

    __slots__ = ("_msg", "_type", "count", "raw", "received", "source_ns")

    def __init__(self, raw: bytes, type_name: str, received: float, source_ns: int, count: int) -> None:
        self.raw = raw
        """CDR bytes as received."""
        self.received = received
        """Local `time.monotonic()` in seconds at arrival, for ages."""
        self.source_ns = source_ns
        """The writer's wall clock in nanoseconds; 0 if unknown."""
        self.count = count
        """Number of samples received so far, including this one."""
        self._type = type_name
        self._msg: Any = None

    @property
    def msg(self) -> Any:
        """Return the decoded message; its arrays are read-only."""
        if self._msg is None:
            self._msg = decode(self.raw, self._type)
        return self._msg


class Publisher(ABC):
    """Send messages of one type on one topic."""

    def __init__(self, type_name: str, topic: str, qos: QoS) -> None:
        self.type_name, self.topic, self.qos = type_name, topic, qos

    def publish(self, msg: Any) -> bool:
        """Send a message (or CDR bytes as they are); False if a reliable reader did not keep up for ``qos.blocking``
        seconds."""
        return self._write(msg if isinstance(msg, (bytes, memoryview)) else encode(msg, self.type_name))

    @property
    @abstractmethod
    def matched(self) -> int:
        """Return the number of matched subscriptions."""

    @abstractmethod
    def readers(self) -> list[str]:
        """Return the full names of the nodes that subscribe to the topic, one for each subscription."""

    @abstractmethod
    def other_writers(self, process: bool = False) -> list[str]:
        """Return the full names of other nodes that publish on this topic, with `process` also their process, host and
        GUID as far as known; a command topic should have none."""

    @abstractmethod
    def close(self) -> None:
        """Stop publishing, for instance to leave a command topic to another writer. Idempotent."""

    @abstractmethod
    def _write(self, raw: bytes | memoryview) -> bool: ...


class Subscription(ABC):
    """Hold the latest sample of one topic; call the callback, if any, with each."""

    def __init__(
        self,
        type_name: str,
        topic: str,
        qos: QoS,
        callback: Callable[[Stamped], None] | None,
        log: logging.Logger,
    ) -> None:
        self.type_name, self.topic, self.qos = type_name, topic, qos
        self.latest: Stamped | None = None
        """The newest sample (a slot, no queue), or None before the first."""
        self._callback = callback
        self._log = log
        self._arrived = threading.Condition()
        self._count = 0

    def wait(self, timeout: float, after: int | None = None) -> bool:
        """Wait up to ``timeout`` seconds for a sample newer than ``after`` (a ``count``; default: now)."""
        with self._arrived:
            seen = self._count if after is None else after
            return self._arrived.wait_for(lambda: self._count > seen, timeout)

    @property
    @abstractmethod
    def matched(self) -> int:
        """Return the number of matched publishers."""

    @abstractmethod
    def writers(self, process: bool = False) -> list[str]:
        """Return the full names of the nodes that publish on the topic, one for each publisher; `process` as in
        `Publisher.other_writers`."""

    @abstractmethod
    def close(self) -> None:
        """Stop receiving; ``latest`` keeps its value. Idempotent."""

    def _deliver(self, raw: bytes, received: float, source_ns: int) -> None:
        sample = Stamped(raw, self.type_name, received, source_ns, self._count + 1)
        with self._arrived:
            self.latest = sample
            self._count = sample.count
            self._arrived.notify_all()
        if self._callback is not None:
            try:
                self._callback(sample)
            except Exception:  # the thread serves every subscription: one bad callback must not end it
                self._log.exception("callback of %s failed", self.topic)


class Node(ABC):
    """A named participant of the ROS graph."""

    def __init__(self, args: RosArgs) -> None:
        self.name, self.namespace, self._remaps = args.name, args.namespace, args.remaps
        self.full_name = names.qualified(self.name, self.namespace)
        self.parameters: dict[str, Any] = dict(args.parameters)
        """Parameters from the ROS arguments and parameter files, nested names joined by dots."""
        self._level = args.log_level
        self._logger = logging.getLogger("real.bus." + self.full_name.strip("/").replace("/", "."))
        self._rosout = self.publisher("rcl_interfaces/msg/Log", "/rosout", ROSOUT)

    def resolve(self, name: str) -> str:
        """Return the full name of a topic, after expansion and remapping."""
        return names.resolve(name, self.name, self.namespace, self._remaps)

    def publisher(self, type_name: str, topic: str, qos: QoS = DEFAULT) -> Publisher:
        """Open a publisher; relative names are under the namespace, `~/x` under the node."""
        message(type_name)  # refuses an unknown type with the nearest names
        return self._publisher(type_name, self.resolve(topic), qos)

    def subscribe(
        self,
        type_name: str,
        topic: str,
        qos: QoS = DEFAULT,
        callback: Callable[[Stamped], None] | None = None,
    ) -> Subscription:
        """Open a subscription; ``callback`` runs in the reader thread, so it must be short."""
        message(type_name)
        return self._subscribe(type_name, self.resolve(topic), qos, callback)

    def log(self, level: int | str, text: str) -> None:
        """Log locally and on `/rosout`; level is debug, info, warn, error, fatal or ROS's number."""
        number = LEVELS.get(level.lower(), 0) if isinstance(level, str) else level
        if number not in _TO_LOGGING:
            raise BusError(f"log level {level!r} is none of {', '.join(LEVELS)}")
        if number < self._level:
            return
        self._logger.log(_TO_LOGGING[number], "%s", text, stacklevel=2)
        sec, nanosec = divmod(time.time_ns(), 1_000_000_000)
        caller = sys._getframe(1)
        where = {
            "file": caller.f_code.co_filename, "function": caller.f_code.co_name, "line": caller.f_lineno,
        }  # fmt: skip
        stamp = {"sec": sec, "nanosec": nanosec}
        name = self.full_name.strip("/").replace("/", ".")  # the logger's name, by which rosout readers find nodes
        self._rosout.publish(make("rcl_interfaces/msg/Log", stamp=stamp, level=number, name=name, msg=text, **where))

    @abstractmethod
    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the predicate holds, tried at every change of the graph.

        For matches, other writers and mismatches: ``node.wait_for(lambda: pub.matched > 0, 5.0)``.
        False if it does not hold in time.
        """

    @abstractmethod
    def incompatible(self) -> list[str]:
        """Return sentences about peers that cannot talk with this node: why, and what to change."""

    @abstractmethod
    def close(self) -> None:
        """Leave the graph; publishers and subscriptions of the node end with it. Idempotent."""

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _publisher(self, type_name: str, topic: str, qos: QoS) -> Publisher: ...

    @abstractmethod
    def _subscribe(
        self, type_name: str, topic: str, qos: QoS, callback: Callable[[Stamped], None] | None
    ) -> Subscription: ...
