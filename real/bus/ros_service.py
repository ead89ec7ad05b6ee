"""Services with rclpy. Requests and responses pass as CDR bytes between rclpy's classes and the bus's."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rclpy.serialization import deserialize_message, serialize_message

from real.bus.messages import decode
from real.bus.names import BusError
from real.bus.service import Client, Handler, Service

if TYPE_CHECKING:
    from real.bus.ros import RosNode


class RosService(Service):
    """Server with rclpy."""

    def __init__(self, owner: RosNode, cls: Any, type_name: str, name: str, handler: Handler, profile: Any) -> None:
        super().__init__(owner, type_name, name, handler)
        self._cls, self._ros, self._open = cls, owner.ros, True
        deferred = threading.Event()

        def pass_on(request: Any, response: Any) -> Any:
            deferred.wait()
            return request

        def defer(request: Any, header: Any) -> None:
            owner.worker.submit(lambda: self._serve(request, header))

        # The executor's thread, which also delivers topics, runs the callback and passes its result to
        # `send_response`. As a coroutine, the callback would keep this thread busy until the worker has answered.
        self._service = self._ros.create_service(cls, name, pass_on, qos_profile=profile)
        self._respond = self._service.send_response
        self._service.send_response = defer
        deferred.set()

    def _serve(self, request: Any, header: Any) -> None:
        def respond(raw: bytes | memoryview) -> None:
            if self._open:
                self._respond(deserialize_message(bytes(raw), self._cls.Response), header)

        self._answer(serialize_message(request), respond)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._ros.destroy_service(self._service)


class RosClient(Client):
    """Client with rclpy, which notices neither a server's end nor one of another DDS vendor before the time-out."""

    def __init__(self, owner: RosNode, cls: Any, type_name: str, name: str, profile: Any) -> None:
        super().__init__(owner, type_name, name)
        self._cls, self._ros, self._open = cls, owner.ros, True
        self._client = self._ros.create_client(cls, name, qos_profile=profile)
        self._pending: set[Future[Any]] = set()

    def wait(self, timeout: float) -> bool:
        if not self._open:
            raise BusError(f"{self.name}: this client is closed; open another")
        return self._owner.wait_for(self.ready, timeout)

    def ready(self) -> bool:
        return bool(self._open and self._client.service_is_ready())

    def _send(self, raw: bytes | memoryview) -> Future[Any]:
        future: Future[Any] = Future()
        sent = self._client.call_async(deserialize_message(bytes(raw), self._cls.Request))

        def forget(done: Future[Any]) -> None:
            self._pending.discard(done)
            if done.cancelled():
                self._client.remove_pending_request(sent)

        def arrived(_: Any) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(decode(serialize_message(sent.result()), self.response_type))
            except Exception as error:  # must not end the executor's thread
                future.set_exception(BusError(f"{self.name}: {error}"))

        self._pending.add(future)
        future.add_done_callback(forget)
        sent.add_done_callback(arrived)
        return future

    def close(self) -> None:
        if self._open:
            self._open = False
            for future in list(self._pending):
                future.cancel()
            self._ros.destroy_client(self._client)
