"""Post JSON to a URL with a total time limit, a size limit, and without redirects."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

LARGEST = 4_000_000
"""Largest answer, bytes."""


class Refused(Exception):  # noqa: N818 - it reads as a sentence
    """Request without a usable answer.

    Attributes:
        kind: unreachable, timeout, refused or nonsense.
        wait: wait that the server requests, s; None: not given.
        again: whether the same request may succeed later.
    """

    def __init__(self, kind: str, message: str, again: bool = True, wait: float | None = None):
        self.kind, self.again, self.wait = kind, again, wait
        super().__init__(message)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they would send the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(url: str, body: dict[str, Any], headers: dict[str, str], seconds: float) -> Any:
    """Return a server's JSON answer within `seconds`; `Refused` otherwise."""
    deadline = time.monotonic() + seconds
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | headers, method="POST")
    local = (request.host or "").rpartition("@")[2].startswith(("localhost", "127.", "[::1]"))
    proxy = [urllib.request.ProxyHandler({})] if local else []  # no proxy for requests to this machine
    try:
        with urllib.request.build_opener(_NoRedirects, *proxy).open(request, timeout=seconds) as response:
            text = _read(response, deadline, seconds)
    except urllib.error.HTTPError as error:
        raise _status(error, deadline, seconds) from None
    except TimeoutError:
        raise Refused("timeout", f"gave no answer within {seconds:g} s") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise Refused("timeout", f"could not be connected to within {seconds:g} s") from None
        raise Refused("unreachable", f"cannot be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        raise Refused("unreachable", f"broke the connection off ({error or type(error).__name__})") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("nonsense", f"answered with something other than JSON: {_shown(text)}") from None


def _read(response: Any, deadline: float, seconds: float) -> bytes:
    """Read a body; the time limit holds for the whole body."""
    parts, size = [], 0
    while part := response.read1(65536):
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise Refused("nonsense", f"answered with more than {LARGEST / 1e6:g} MB", again=False)
        if time.monotonic() > deadline:
            raise Refused("timeout", f"had not finished its answer after {seconds:g} s")
    if getattr(response, "length", None):
        raise Refused("unreachable", f"broke the connection off after {size} bytes of its answer")
    return b"".join(parts)


def _status(error: urllib.error.HTTPError, deadline: float, seconds: float) -> Refused:
    """Return the error for an HTTP status, with the start of its body."""
    try:
        excerpt = _shown(_read(error, deadline, seconds))
    except (Refused, OSError, http.client.HTTPException):
        excerpt = ""
    wait = error.headers.get("Retry-After", "")
    again = error.code in (408, 425, 429) or error.code >= 500
    message = f"refused with status {error.code} {error.reason}" + (f": {excerpt}" if excerpt else "")
    return Refused("refused", message, again, float(wait) if wait.isdecimal() else None)


def _shown(text: bytes) -> str:
    excerpt = " ".join(text.decode(errors="replace").split())
    return repr(excerpt[:160] + ("..." if len(excerpt) > 160 else ""))
