"""Services with CycloneDDS, in the form of rmw_cyclonedds: requests and replies are topics whose samples begin with
the client's id and a sequence number."""

from __future__ import annotations

import itertools
import os
import re
import struct
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from cyclonedds.qos import Policy

from real.bus.endpoint import UNSIGNED, Endpoint, Reader, Writer
from real.bus.messages import decode
from real.bus.names import BusError, dds_reply, dds_request
from real.bus.qos import QoS
from real.bus.service import Client, Handler, Service

if TYPE_CHECKING:
    from real.bus.dds import DdsNode

_CDR, _HEADER = 4, 16  # bytes of CDR's encapsulation and of the header behind it
_PATIENCE = 0.1  # wait for a client's reply reader, s; as rmw_cyclonedds
_NAMING = 5.0  # wait for the name of a client of another vendor, s; up to 3 s were measured
_REMEDY = "such as Fast DDS: use RMW_IMPLEMENTATION=rmw_cyclonedds_cpp there, or bus:=rclpy with its middleware here"


def join(guid: int, sequence: int, raw: bytes | memoryview) -> bytes:
    """Insert the header ``uint64 guid; int64 sequence`` into CDR bytes, behind their encapsulation. The body's
    alignment does not change, as 16 is a multiple of 8."""
    return b"".join((raw[:_CDR], struct.pack(_order(raw) + "Qq", guid, sequence), raw[_CDR:]))


def split(raw: bytes) -> tuple[int, int, bytes]:
    """Return guid, sequence number and plain CDR bytes of a request or a reply. BusError if it is too short."""
    if len(raw) < _CDR + _HEADER:
        raise BusError(f"{len(raw)} bytes are no request and no reply of rmw_cyclonedds")
    guid, sequence = struct.unpack_from(_order(raw) + "Qq", raw, _CDR)
    return guid, sequence, raw[:_CDR] + raw[_CDR + _HEADER :]


def _order(raw: bytes | memoryview) -> str:
    return "<" if raw[1] & 1 else ">"


def _ident(endpoint: Any, key: str) -> str:
    """Return the id of a peer's service or client (`key` "serviceid", "clientid"); empty for another DDS vendor, and
    for the peer None."""
    policies = endpoint.qos if endpoint is not None else ()
    data = next((policy.data for policy in policies if isinstance(policy, Policy.Userdata)), b"")
    found = re.search(rb"(?:^|;)" + key.encode() + rb"=([^;]*);", data)
    return found[1].decode(errors="replace") if found else ""


def _idents(end: Endpoint, key: str) -> set[str]:
    """Return the ids of the matched peers."""
    return {_ident(peer, key) for peer in end.matched().values()} - {""}


def _unique() -> tuple[int, str]:
    """Return a new guid, and the id that contains it as text: 16 bytes in hex, joined by dots."""
    data = os.urandom(16)
    return int.from_bytes(data[:8], "little"), ".".join(f"{byte:x}" for byte in data)


def _name(node: DdsNode, guid: bytes, timeout: float) -> str:
    """Return the name of the node with the endpoint `guid`, which may be announced some time after the endpoint."""
    owner = node.participant.owner
    node.wait_for(lambda: owner(guid).startswith("/"), timeout)
    return owner(guid)


class _Pair:
    """Writer and reader of a service or of a client."""

    def __init__(self, key: str, owner: DdsNode, types: tuple[str, str], name: str, qos: QoS, on_bytes: Any) -> None:
        self.guid, ident = _unique()
        client = key == "clientid"
        wires = (dds_request(name), dds_reply(name))
        out, back = (0, 1) if client else (1, 0)
        self.writer = Writer(owner, name, types[out], qos, wires[out], f"{key}={ident};")
        try:
            self.reader = Reader(owner, name, types[back], qos, on_bytes, wires[back], f"{key}={ident};")
        except BaseException:
            self.writer.delete()
            raise
        self.writer.roles = self.reader.roles = ("client", "server") if client else ("server", "client")


class DdsService(Service):
    """Server with a Cyclone reader of requests and a writer of replies."""

    def __init__(self, owner: DdsNode, type_name: str, name: str, handler: Handler, qos: QoS) -> None:
        super().__init__(owner, type_name, name, handler)
        self._dds, self._seen = owner, set[int]()
        types = (self.request_type, self.response_type)
        self._pair = _Pair("serviceid", owner, types, name, qos, self._on_request)
        self._pair.reader.on_change = self._on_change
        self._on_change()
        self.ends = (self._pair.writer, self._pair.reader)

    def close(self) -> None:
        self._dds.drop(self)

    def _on_request(self, raw: bytes, info: Any) -> None:
        self._dds.worker.submit(lambda: self._serve(raw, info.publication_handle & UNSIGNED))

    def _serve(self, raw: bytes, handle: int) -> None:
        with self._dds.participant.lock:  # held until this service is complete
            requests = self._pair.reader
        self._dds.wait_for(lambda: requests.matched().get(handle, requests) is not None, _PATIENCE)
        client = requests.matched().get(handle)
        if client is None or not (ident := _ident(client, "clientid")):
            return  # it has left, or is of another vendor, as logged by `_report`
        guid, sequence, request = split(raw)
        replies, who = self._pair.writer, self._dds.participant.owner(client.key.bytes)

        def respond(response: bytes | memoryview) -> None:
            if self._dds.wait_for(lambda: replies.closed or ident in _idents(replies, "clientid"), _PATIENCE):
                if not replies.closed:
                    replies.write(join(guid, sequence, response))
            elif handle in requests.matched():
                self._dds._logger.warning("%s: no reply reader of %s; it gets no response", self.name, who)

        self._answer(request, respond)

    def _on_change(self) -> None:
        matched = set(self._pair.reader.matched())
        new, self._seen = matched - self._seen, matched
        for handle in new:  # not in the worker, where requests would wait for the name
            threading.Thread(target=self._report, args=(handle,), daemon=True).start()

    def _report(self, handle: int) -> None:
        """Log a client of another vendor. Its requests do not arrive where Cyclone finds them malformed."""
        requests = self._pair.reader
        self._dds.wait_for(lambda: requests.matched().get(handle, requests) is not None, _PATIENCE)
        client = requests.matched().get(handle)
        if client is not None and not _ident(client, "clientid"):
            who = _name(self._dds, client.key.bytes, _NAMING)
            self._dds._logger.warning("%s: no response for %s, of another DDS vendor, %s", self.name, who, _REMEDY)


class DdsClient(Client):
    """Client with a Cyclone writer of requests and a reader of replies."""

    def __init__(self, owner: DdsNode, type_name: str, name: str, qos: QoS) -> None:
        super().__init__(owner, type_name, name)
        self._dds = owner
        self._sequence = itertools.count(1)
        self._pending: dict[int, Future[Any]] = {}
        types = (self.request_type, self.response_type)
        self._pair = _Pair("clientid", owner, types, name, qos, self._on_reply)
        self._pair.writer.on_change = self._on_change
        self.ends = (self._pair.writer, self._pair.reader)

    def close(self) -> None:
        self._dds.drop(self)
        self._fail("this client was closed; open another")

    def wait(self, timeout: float) -> bool:
        if self._pair.writer.closed:
            raise BusError(f"{self.name}: this client is closed; open another")
        deadline = time.monotonic() + timeout
        self._dds.wait_for(lambda: self._known() and bool(self._foreign() or self._servers()), timeout)
        if foreign := self._foreign():
            # Fast DDS would read our header as part of the request and may allocate all memory.
            names = sorted(_name(self._dds, guid, max(0.0, deadline - time.monotonic())) for guid in foreign)
            raise BusError(f"{self.name}: nothing was sent to {', '.join(names)}, of another DDS vendor, {_REMEDY}")
        return self.ready()

    def ready(self) -> bool:
        return self._known() and bool(self._servers())

    def _known(self) -> bool:
        return None not in self._pair.writer.matched().values()

    def _servers(self) -> set[str]:
        """Return the ids of the servers of which both request reader and reply writer are matched."""
        return _idents(self._pair.writer, "serviceid") & _idents(self._pair.reader, "serviceid")

    def _foreign(self) -> list[bytes]:
        """Return the GUIDs of matched request readers of another DDS vendor."""
        peers = self._pair.writer.matched().values()
        return [peer.key.bytes for peer in peers if peer is not None and not _ident(peer, "serviceid")]

    def _absence(self) -> str:
        reasons = [text for end in self.ends for text in end.complaints()]
        return " ".join(reasons) or super()._absence()

    def _send(self, raw: bytes | memoryview) -> Future[Any]:
        sequence, future = next(self._sequence), Future[Any]()
        self._pending[sequence] = future
        future.add_done_callback(lambda _: self._pending.pop(sequence, None))
        if not self._pair.writer.write(join(self._pair.guid, sequence, raw)):
            future.cancel()
            raise BusError(f"{self.name}: its server takes no requests; restart it")
        return future

    def _on_reply(self, raw: bytes, info: Any) -> None:
        guid, sequence, response = split(raw)
        # All clients of a service read all replies.
        future = self._pending.pop(sequence, None) if guid == self._pair.guid else None
        if future is None or not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(decode(response, self.response_type))
        except BusError as error:
            future.set_exception(error)

    def _on_change(self) -> None:
        """Fail the calls that wait if there is no server any more."""
        if self._pending and not self._servers():
            self._pair.reader.take()  # its last reply may be there
            self._fail("its server left before it answered; start it again")

    def _fail(self, reason: str) -> None:
        for sequence in list(self._pending):
            future = self._pending.pop(sequence, None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(BusError(f"{self.name}: {reason}"))
