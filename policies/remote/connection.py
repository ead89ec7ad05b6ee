"""A client's connection: every request has one answer, and every failure is counted and reported in one sentence."""

import socket
import struct
import time
from collections import Counter
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect

from policies.errors import RemoteFailure
from policies.remote import LARGEST
from policies.remote.packing import PackingError, pack, unpack
from robot_rl.util.errors import ConfigError

FIRST = 120.0
"""Longest wait for the first answer, s, because a server may compile its model first."""


class Connection:
    """Connection to a policy server. After a failure all requests fail, because a late answer would be taken for the
    answer to the next request."""

    def __init__(self, address: str, timeout: float = 60.0, first: float = FIRST):
        """Connect, and read the server's metadata.

        Args:
            timeout: longest time to connect, and longest wait for an answer, s.
            first: longest wait for the first answer, s.

        Raises:
            ConfigError: `address` is invalid.
            RemoteFailure: there is no server at `address`, or the server has another protocol.
        """
        self.address, self.timeout, self.first = address, timeout, max(first, timeout)
        self.requests = 0
        """Number of answered requests."""
        self.longest = 0.0
        """Longest time from a request to its answer, s; the first request is not counted."""
        self.failures: Counter[str] = Counter()
        self._broken: RemoteFailure | None = None
        self._socket: ClientConnection | None = None
        try:  # no pings: a busy server may not respond, and every wait has its own timeout
            self._socket = connect(
                address, compression=None, max_size=LARGEST, proxy=None, open_timeout=timeout, close_timeout=0.1,
                ping_interval=None,
            )  # fmt: skip
        except (InvalidURI, ValueError) as error:
            raise ConfigError(f"{address} is no address of a server ({error}); write ws://HOST:PORT") from None
        except TimeoutError:
            raise self.fail("unreachable", f"does not answer within {timeout:g} s") from None
        except (OSError, EOFError, WebSocketException, AssertionError) as error:
            # The library raises AssertionError if a server sends data before the handshake and disconnects.
            reason = getattr(error, "strerror", None) or str(error) or "it speaks another protocol"
            raise self.fail("unreachable", f"cannot be reached ({reason}); start `robot-rl serve BUNDLE`") from None
        # Without this timeout, sending a large request to a server that has stopped reading would block forever.
        limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
        self._socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.metadata = self._receive(timeout)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; RemoteFailure if the answer is late or invalid."""
        if self._broken:
            raise self._broken
        assert self._socket is not None
        begun, data = time.monotonic(), pack(request)
        try:
            self._socket.send(data)
        except ConnectionClosed as error:  # `_receive` reports the reason that the server may have sent
            if isinstance(error.__cause__, BlockingIOError):
                raise self.fail("timeout", f"has read nothing for {self.timeout:g} s") from None
        answer = self._receive(self.timeout if self.requests else self.first)
        if self.requests:
            self.longest = max(self.longest, time.monotonic() - begun)
        self.requests += 1
        return answer

    def fail(self, kind: str, what: str) -> RemoteFailure:
        """Count a failure, close the connection, and return the exception to raise."""
        self.failures[kind] += 1
        self.close()
        self._broken = RemoteFailure(kind, f"the policy server at {self.address} {what}")
        return self._broken

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self._socket is not None
        try:
            message = self._socket.recv(timeout)
        except TimeoutError:
            raise self.fail("timeout", f"has not answered for {timeout:g} s; see whether it still runs") from None
        except ConnectionClosed as error:
            reason = f" ({error.rcvd.reason})" if error.rcvd and error.rcvd.reason else ""
            raise self.fail("closed", f"has closed the connection{reason}; see whether it still runs") from None
        if isinstance(message, str):
            lines = [line for line in message.strip().splitlines() if line.strip()] or ["nothing"]
            raise self.fail("error", f"reports an error: {lines[-1].strip()[:500]}")
        try:
            answer = unpack(message)
        except PackingError as error:
            raise self.fail("nonsense", f"answers nonsense: {error}") from None
        if not isinstance(answer, dict):
            raise self.fail("nonsense", f"answers nonsense: {type(answer).__name__}, not a table")
        return answer

    def summary(self) -> dict[str, Any]:
        """Return the numbers of requests and failures, and the longest time to an answer, ms, for the report."""
        longest = {"longest_answer_ms": round(1e3 * self.longest, 1)}
        return {"address": self.address, "requests": self.requests, "failures": dict(self.failures)} | longest

    def close(self) -> None:
        """Close the connection within 0.1 s."""
        if self._socket is not None:
            self._socket.close()
