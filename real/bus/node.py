"""Interface that the DDS and rclpy backends implement: nodes, publishers, subscriptions, received samples."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from real import clock
from real.bus import names
from real.bus.action import ActionClient
from real.bus.action_server import Accept, ActionServer, Execute
from real.bus.messages import decode, encode, make, message
from real.bus.names import BusError
from real.bus.parameter_server import ParameterServer
from real.bus.parameters import Declaration, OnSet, Parameters, type_of
from real.bus.qos import DEFAULT, ROSOUT, QoS
from real.bus.rosargs import LEVELS, RosArgs
from real.bus.service import Client, Handler, Service, Worker
from real.bus.stamps import stamp


class Stamped:
    """Received sample; ``msg`` is decoded at its first use."""

    __slots__ = ("_msg", "_type", "count", "raw", "received", "source_ns")

    def __init__(self, raw: bytes, type_name: str, received: float, source_ns: int, count: int) -> None:
        self.raw = raw
        """Received CDR bytes."""
        self.received = received
        """Time of arrival by `real.clock`, s."""
        self.source_ns = source_ns
        """Time of publication by the writer's wall clock, ns; 0 if unknown."""
        self.count = count
        """Number of samples that the subscription has received so far, including this one."""
        self._type = type_name
        self._msg: Any = None

    @property
    def msg(self) -> Any:
        """Return the decoded message; its arrays are read-only."""
        if self._msg is None:
            self._msg = decode(self.raw, self._type)
        return self._msg


OnSample = Callable[[Stamped], None] | None
Tap = Callable[[str, str, bytes | memoryview], None]
"""Receiver of a copy of each message: topic, type and CDR bytes."""


class Publisher(ABC):
    """Publisher of one message type on one topic."""

    def __init__(self, type_name: str, topic: str, qos: QoS) -> None:
        self.type_name, self.topic, self.qos = type_name, topic, qos
        self.taps: list[Tap] = []

    def publish(self, msg: Any) -> bool:
        """Publish a message or CDR bytes; return False if a reliable reader blocked it for ``qos.blocking`` seconds."""
        raw = msg if isinstance(msg, (bytes, memoryview)) else encode(msg, self.type_name)
        for tap in self.taps:
            tap(self.topic, self.type_name, raw)
        return self._write(raw)

    @property
    @abstractmethod
    def matched(self) -> int:
        """Return the number of matched subscriptions."""

    @abstractmethod
    def readers(self) -> list[str]:
        """Return the full node name of each of the topic's subscriptions."""

    @abstractmethod
    def other_writers(self, process: bool = False) -> list[str]:
        """Return the full names of the topic's other publishers; `process` adds process, host and GUID, if known. A
        command topic should have no other publisher."""

    @abstractmethod
    def close(self) -> None:
        """Stop publishing. Idempotent."""

    @abstractmethod
    def _write(self, raw: bytes | memoryview) -> bool: ...


class Subscription(ABC):
    """Subscription that keeps a topic's newest sample and calls its callback, if any, with every sample."""

    def __init__(self, type_name: str, topic: str, qos: QoS, callback: OnSample, log: logging.Logger) -> None:
        self.type_name, self.topic, self.qos = type_name, topic, qos
        self.latest: Stamped | None = None
        """Newest sample; None before the first. Samples are not queued."""
        self.at_once = False
        """Deliver samples on arrival even in lockstep: for the clock itself."""
        self.taps: list[Tap] = []
        self._callback = callback
        self._log = log
        self._arrived = threading.Condition()
        self._count = 0

    def wait(self, timeout: float, after: int | None = None) -> bool:
        """Wait up to ``timeout`` seconds for a sample with a ``count`` above ``after``; default: the next sample."""
        seen = self._count if after is None else after
        return clock.wait(lambda: self._count > seen, timeout, self._arrived)

    def poll(self, timeout: float) -> None:
        """Wait up to ``timeout`` s, by the machine's clock, for a sample of a subscription with ``at_once``."""
        with self._arrived:
            seen = self._count
            self._arrived.wait_for(lambda: self._count > seen, timeout)

    @property
    @abstractmethod
    def matched(self) -> int:
        """Return the number of matched publishers."""

    @abstractmethod
    def writers(self, process: bool = False) -> list[str]:
        """Return the full node name of each of the topic's publishers; `process`: as in `Publisher.other_writers`."""

    @abstractmethod
    def close(self) -> None:
        """Stop receiving; ``latest`` keeps its value. Idempotent."""

    def set_at_once(self) -> None:
        """Deliver samples on arrival even in lockstep, in the thread that calls `poll`."""
        self.at_once = True

    def _arrive(self, raw: bytes, source_ns: int) -> None:
        """Deliver a sample that has arrived: now, or in lockstep at the next tick."""
        if self.at_once:
            self._deliver(raw, clock.now(), source_ns)
        else:
            clock.receive(1e-9 * source_ns, self.topic, id(self), lambda now: self._deliver(raw, now, source_ns))

    def _deliver(self, raw: bytes, received: float, source_ns: int) -> None:
        sample = Stamped(raw, self.type_name, received, source_ns, self._count + 1)
        with self._arrived:
            self.latest = sample
            self._count = sample.count
            self._arrived.notify_all()
        for tap in self.taps:
            tap(self.topic, self.type_name, raw)
        if self._callback is not None:
            try:
                self._callback(sample)
            except Exception:  # an error in one callback must not end the thread, which serves all subscriptions
                self._log.exception("callback of %s failed", self.topic)


class Node(ABC):
    """Node of the ROS graph."""

    def __init__(self, args: RosArgs) -> None:
        self.name, self.namespace, self._remaps = args.name, args.namespace, args.remaps
        self.full_name = names.qualified(self.name, self.namespace)
        self.parameters: dict[str, Any] = dict(args.parameters)
        """Parameters by name, from ROS arguments and parameter files; nested names are joined by dots."""
        self._declarations = Parameters(self.parameters)
        self._parameter_server: Any = None
        self._level = args.log_level
        self._logger = logging.getLogger("real.bus." + self.full_name.strip("/").replace("/", "."))
        self.worker = Worker(self.full_name, self._logger)
        """Thread of the service handlers."""
        self._action_servers: list[ActionServer] = []
        self._rosout = self.publisher("rcl_interfaces/msg/Log", "/rosout", ROSOUT)

    def resolve(self, name: str) -> str:
        """Return a topic's full name after expansion and remapping."""
        return names.resolve(name, self.name, self.namespace, self._remaps)

    def publisher(self, type_name: str, topic: str, qos: QoS = DEFAULT) -> Publisher:
        """Open a publisher; a topic `x` is relative to the node's namespace, `~/x` to the node."""
        message(type_name)  # raises for an unknown type
        return self._publisher(type_name, self.resolve(topic), qos)

    def subscribe(
        self, type_name: str, topic: str, qos: QoS = DEFAULT, callback: OnSample = None, at_once: bool = False
    ) -> Subscription:
        """Open a subscription; ``callback`` runs in the reader thread and must return quickly. ``at_once``: also in
        lockstep, deliver samples as they arrive."""
        message(type_name)
        subscription = self._subscribe(type_name, self.resolve(topic), qos, callback)
        if at_once:
            subscription.set_at_once()
        return subscription

    def service(self, type_name: str, name: str, handler: Handler, qos: QoS = DEFAULT) -> Service:
        """Serve a service such as ``std_srvs/srv/Trigger``. ``handler`` takes the request and returns the response; it
        runs in the node's worker thread, and no other handler of the node runs meanwhile."""
        return self._service(_service_type(type_name), self.resolve(name), handler, qos)

    def client(self, type_name: str, name: str, qos: QoS = DEFAULT) -> Client:
        """Open a client of a service."""
        return self._client(_service_type(type_name), self.resolve(name), qos)

    def action_server(
        self, type_name: str, name: str, execute: Execute, accept: Accept = lambda goal: True,
        cancel: Accept = lambda goal: True, parallel: int = 1,
    ) -> ActionServer:  # fmt: skip
        """Serve an action such as ``control_msgs/action/GripperCommand``.

        ``execute`` takes a `ServerGoal` and returns the result; it runs in a thread of its own. ``accept`` and
        ``cancel`` take a goal's message and return whether to accept and to cancel it. A goal is rejected while
        ``parallel`` others run.
        """
        server = ActionServer(self, _action_type(type_name), name, execute, accept, cancel, parallel)
        self._action_servers.append(server)
        return server

    def action_client(self, type_name: str, name: str) -> ActionClient:
        """Open a client of an action."""
        return ActionClient(self, _action_type(type_name), name)

    def declare_parameter(
        self, name: str, default: Any, description: str = "", low: float | None = None, high: float | None = None,
        read_only: bool = False, on_set: OnSet = None,
    ) -> Any:  # fmt: skip
        """Declare a parameter of the default's type and return its value, also found in `parameters`.

        ``low``, ``high``: bounds of a number. ``on_set`` gets a new value before it takes effect; an exception refuses
        it. It must return quickly. Raises BusError if the launch argument does not fit.
        """
        kind = type_of(default)
        if kind == 0:
            raise BusError(f"parameter {name}: ROS has no type for {default!r}; use a bool, number, text or their list")
        declaration = Declaration(name, kind, description, low, high, read_only, on_set)
        value = self._declarations.declare(declaration, default)
        if self._parameter_server is not None:
            self._parameter_server.declare(declaration)
        return value

    def serve_parameters(self) -> None:
        """Let other nodes list, read and set this node's parameters, as with ``ros2 param``. Those not declared can be
        read only. Idempotent."""
        if self._parameter_server is None:
            self._parameter_server = self._serve_parameters(self._declarations)

    def log(self, level: int | str, text: str) -> None:
        """Log a text locally and on `/rosout`; ``level`` is debug, info, warn, error, fatal or ROS's number."""
        number = LEVELS.get(level.lower(), 0) if isinstance(level, str) else level
        if number not in LEVELS.values():
            raise BusError(f"log level {level!r} is none of {', '.join(LEVELS)}")
        if number < self._level:
            return
        self._logger.log(number, "%s", text, stacklevel=2)  # ROS's numbers are those of `logging`
        caller = sys._getframe(1)
        self._rosout.publish(
            make(
                "rcl_interfaces/msg/Log", stamp=stamp(), level=number, msg=text,
                name=self.full_name.strip("/").replace("/", "."),  # ROS's logger names have dots
                file=caller.f_code.co_filename, function=caller.f_code.co_name, line=caller.f_lineno,
            )
        )  # fmt: skip

    @property
    def source(self) -> Any:
        """Return what takes this node's samples in lockstep, which nodes may share, see `real.lockstep.Source`."""
        return self

    def drain(self, timeout: float = 0.0) -> None:
        """Wait a moment if `timeout` is not 0: another thread takes the samples."""
        if timeout > 0:
            time.sleep(0.0001)

    def listen(self, alone: bool) -> None:  # noqa: B027 - only some backends can do else
        """Go on taking samples as they arrive."""

    @abstractmethod
    def delivers(self) -> bool:
        """Return whether the calling thread is the one that delivers samples and responses."""

    @abstractmethod
    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        """Wait up to ``timeout`` s until a predicate of the graph holds, such as ``lambda: pub.matched > 0``.

        Returns its value. It is evaluated when the graph changes, not when samples arrive: for those see
        `Subscription.wait` and `clock.wait`.
        """

    @abstractmethod
    def incompatible(self) -> list[str]:
        """Return a message for each peer with an incompatible type or QoS: it names the reason and the remedy."""

    @abstractmethod
    def close(self) -> None:
        """Leave the graph and close the node's publishers and subscriptions. Idempotent."""

    def _stop_serving(self) -> None:
        for server in self._action_servers:
            server.close()
        self.worker.close()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _publisher(self, type_name: str, topic: str, qos: QoS) -> Publisher: ...

    @abstractmethod
    def _subscribe(self, type_name: str, topic: str, qos: QoS, callback: OnSample) -> Subscription: ...

    def _serve_parameters(self, parameters: Parameters) -> Any:
        return ParameterServer(self, parameters)

    @abstractmethod
    def _service(self, type_name: str, name: str, handler: Handler, qos: QoS) -> Service: ...

    @abstractmethod
    def _client(self, type_name: str, name: str, qos: QoS) -> Client: ...


def _action_type(type_name: str) -> str:
    """Return a known action's type name unchanged; BusError for another."""
    message(f"{type_name}_FeedbackMessage")
    return type_name


def _service_type(type_name: str) -> str:
    """Return a known service's type name unchanged; BusError for another."""
    for part in ("_Request", "_Response"):
        message(type_name + part)
    return type_name
