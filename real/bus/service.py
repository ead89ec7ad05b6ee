"""Services: interface of servers and clients that both backends implement, and the thread that runs handlers.

::

    server = node.service("std_srvs/srv/Trigger", "~/reset", lambda request: make("std_srvs/srv/Trigger_Response"))
    client = node.client("std_srvs/srv/Trigger", "/arm/reset")
    response = client.call(make("std_srvs/srv/Trigger_Request"), timeout=1.0)

Services are not for safety: DDS vendors do not understand each other's services, and a request has no deadline.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any

from real.bus.messages import decode, encode
from real.bus.names import BusError

if TYPE_CHECKING:
    from real.bus.node import Node

Handler = Callable[[Any], Any]
"""Handler of a service: takes a decoded request, returns the response or a `Future` of it."""
_WAITING = 1000  # requests that wait for a node's worker at most


class Worker:
    """Thread that runs a node's service handlers one after the other, so that topics do not wait for them."""

    def __init__(self, name: str, log: logging.Logger) -> None:
        self._name, self._log = name, log
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after those submitted before; drop it if too many wait."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"services {self._name}", daemon=True)
                self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._log.error("%s drops a request: %d wait for its handlers", self._name, _WAITING)

    def _run(self) -> None:
        while not self._closed and (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # must not end the thread, which serves all requests
                if not self._closed:
                    self._log.exception("service of %s failed", self._name)

    def close(self) -> None:
        """Drop the waiting jobs and wait up to 2 s for the running one."""
        with self._lock:
            self._closed = True
        if self._thread is None or self._thread is threading.current_thread():
            return
        while self._thread.is_alive():
            try:
                self._jobs.put_nowait(None)
                break
            except queue.Full:
                self._jobs.get_nowait()
        self._thread.join(2.0)


class Service(ABC):
    """Server of a service; its handler runs in the node's worker thread."""

    def __init__(self, owner: Node, type_name: str, name: str, handler: Handler) -> None:
        self.type_name, self.name = type_name, name
        self.request_type, self.response_type = f"{type_name}_Request", f"{type_name}_Response"
        self._owner, self._handler = owner, handler

    @abstractmethod
    def close(self) -> None:
        """Stop serving. Idempotent."""

    def _answer(self, raw: bytes, respond: Callable[[bytes | memoryview], None]) -> None:
        """Run the handler on an encoded request and pass the encoded response on, once it is there. An error is logged
        and leaves the request unanswered, since a default response could be taken for a result."""
        try:
            response = self._handler(decode(raw, self.request_type))
            if not isinstance(response, Future):
                respond(encode(response, self.response_type))
                return
        except Exception:
            self._owner._logger.exception("handler of service %s failed: its client gets no response", self.name)
            return
        # An error in this callback is logged by `Future`.
        response.add_done_callback(lambda done: respond(encode(done.result(), self.response_type)))


class Client(ABC):
    """Client of a service."""

    def __init__(self, owner: Node, type_name: str, name: str) -> None:
        self.type_name, self.name = type_name, name
        self.request_type, self.response_type = f"{type_name}_Request", f"{type_name}_Response"
        self._owner = owner

    def call(self, request: Any, timeout: float = 1.0) -> Any:
        """Return the response to a request. Raises BusError after ``timeout`` seconds without a server or without its
        response, if the server leaves, and if the server cannot understand this client."""
        if self._owner.delivers():
            raise BusError(f"call of {self.name} in a callback: its response could not arrive; use send(), or a thread")
        deadline = time.monotonic() + timeout
        raw = encode(request, self.request_type)
        if not self.wait(timeout):
            raise BusError(f"no server of {self.name} ({self.type_name}) within {timeout:g} s: {self._absence()}")
        future = self._send(raw)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, CancelledError):
            future.cancel()
            raise BusError(
                f"{self.name} did not answer within {timeout:g} s: read the log of its server, or wait longer"
            ) from None

    def send(self, request: Any) -> Future[Any]:
        """Send a request and return the future of its response, whose callbacks must return quickly. Raises BusError
        without a server; an error of the call is the future's exception."""
        raw = encode(request, self.request_type)
        if not self.wait(0.0):
            raise BusError(f"no server of {self.name} ({self.type_name}): {self._absence()}")
        return self._send(raw)

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` s for a server; return whether there is one. BusError for one of another vendor."""

    @abstractmethod
    def ready(self) -> bool:
        """Return whether there is a server, without an error for another vendor's."""

    @abstractmethod
    def close(self) -> None:
        """Stop calling; calls that wait fail. Idempotent."""

    @abstractmethod
    def _send(self, raw: bytes | memoryview) -> Future[Any]: ...

    def _absence(self) -> str:
        """Return why there may be no server, and a remedy."""
        return "start it, or check its name with 'ros2 service list'"
