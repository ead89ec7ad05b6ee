"""Server of the console: its page, the viewer's page, and their sockets, for browsers that know the token.

::

    browser                          this process
    /?token=...        ------------> a cookie, then /
    /, /console.js ... ------------> the console's page
    /socket            <-----------> `Handler`: JSON messages of a page, and news for it
    /scene/<page>      <-----------> viser's server, which accepts nobody else's connection
"""

import asyncio
import hmac
import json
import logging
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import viser
from websockets.asyncio.client import connect
from websockets.asyncio.server import Server, ServerConnection, broadcast, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from robot_rl.util.errors import UserError
from robot_rl.view.page import HOST, PORT
from robot_rl.view.viewer import ALLOW, Viewer

logger = logging.getLogger(__name__)
WEB = Path(__file__).parent / "web"
VISER = Path(viser.__file__).parent / "client" / "build" / "index.html"
"""Page of viser's browser side, in one file."""
FILES = {"/": "console.html", "/console.js": "console.js", "/console.css": "console.css"}
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}
LONGEST = 2000
"""Largest message of a page, characters."""
SCENE_LONGEST = 1 << 16
"""Largest message of viser's page, bytes."""
MOST = 120
"""Messages that a page may send in a second."""
CONNECTIONS = 20
"""Largest number of open pages."""
POLICY_VIOLATION = 1008
"""Close code of a page that sent what no page sends."""


class Refused(Exception):  # noqa: N818
    """Raised for a message that is not accepted; the page's connection is closed."""


class Handler(Protocol):
    """Receiver of what pages send; called in the server's thread."""

    def received(self, page: str, text: str) -> str:
        """Return an answer for the page, or an empty string. Raises Refused."""

    def closed(self, page: str) -> None:
        """Take note that a page is gone; called at least once per page."""


class ConsoleServer:
    """Server in a thread of its own."""

    def __init__(
        self, viewer: Viewer, handler: Handler, host: str = HOST, port: int = 0, tls: ssl.SSLContext | None = None,
        token: str = "",
    ):  # fmt: skip
        """`viewer` draws on viser's pages. `port` 0: 8080 or the next free one. `tls`: needed if others can connect.
        UserError if the port or the address cannot be used."""
        self.token = token or secrets.token_urlsafe(18)
        self.scheme = "https" if tls else "http"
        self.host, self.viewer, self._handler, self._tls = host, viewer, handler, tls
        self.pages: dict[str, ServerConnection] = {}
        """Connections of the open pages by their names."""
        self._keys: dict[str, str] = {}
        """Page by the secret name of its 3-D view, which only this page knows."""
        self._session = secrets.token_urlsafe(18)
        """What browsers keep in a cookie; the token itself would be sent to other servers of this host."""
        self._scenes: dict[int, str] = {}
        """Page of each connection to viser, by our side's port."""
        self._stop: asyncio.Event | None = None
        self.loop = asyncio.new_event_loop()
        started: list[BaseException | None] = []
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port, ready, started), name="console", daemon=True)
        self._thread.start()
        ready.wait()
        if error := started[0]:
            raise UserError(f"the console cannot listen on {host} port {port or PORT}: {error}; give --host and --port")

    @property
    def address(self) -> str:
        """Return the address to open, with the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/?token={self.token}"

    def scene_of(self, page: str) -> int:
        """Return our port of a page's connection to viser; 0 if there is none."""
        return next((port for port, owner in reversed(self._scenes.items()) if owner == page), 0)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the server's thread. Thread-safe; dropped once the server is closed."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function)

    def post(self, news: dict[str, Any]) -> None:
        """Send news to all pages; call it in the server's thread."""
        broadcast(self.pages.values(), json.dumps(news))

    def close(self) -> None:
        """End all connections. Idempotent."""
        if self._stop is not None:
            self.call(self._stop.set)
        self._thread.join(timeout=5.0)

    # ---- thread ------------------------------------------------------------------------------------------------
    def _run(self, port: int, ready: threading.Event, started: list[BaseException | None]) -> None:
        asyncio.set_event_loop(self.loop)

        async def main() -> None:
            self._stop = asyncio.Event()
            try:
                server = await self._listen(port)
            except (OSError, OverflowError) as error:
                started.append(error)
                return
            finally:
                started.append(None)
                ready.set()
            async with server:
                await self._stop.wait()

        self.loop.run_until_complete(main())
        self.loop.close()

    async def _listen(self, port: int) -> Server:
        """Return the server on a port, or on the first free one from `PORT` on."""
        for number in (port,) if port else range(PORT, PORT + 100):
            try:
                server = await serve(
                    self._serve, self.host, number, ssl=self._tls, process_request=self._request,
                    select_subprotocol=_viser_protocol, max_size=SCENE_LONGEST, compression=None, server_header=None,
                    ping_interval=2.0, ping_timeout=10.0, open_timeout=5.0,
                    ssl_handshake_timeout=5.0 if self._tls else None,
                )  # fmt: skip
            except OSError:
                if port or number == PORT + 99:
                    raise
            else:
                self.port = number
                return server
        raise AssertionError

    # ---- requests ----------------------------------------------------------------------------------------------
    @property
    def _cookie(self) -> str:
        return f"robot_rl_{self.port}"  # browsers share cookies among a host's ports

    def _knows(self, request: Request) -> bool:
        """Return whether a request has the cookie."""
        cookies = "; ".join(request.headers.get_all("Cookie")).split("; ")
        given = next((c.partition("=")[2] for c in cookies if c.startswith(f"{self._cookie}=")), "")
        return hmac.compare_digest(given.encode(), self._session.encode())

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer a request for a file; let sockets of known browsers through."""
        url = urlsplit(request.path)
        if given := parse_qs(url.query).get("token"):
            if not hmac.compare_digest(given[0].encode(), self.token.encode()):
                return _answer(HTTPStatus.FORBIDDEN, "wrong token: open the address that robot-rl console printed\n")
            secure = "; Secure" if self._tls else ""
            cookie = f"{self._cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/{secure}"
            return _answer(HTTPStatus.FOUND, "", Location=url.path, Set_Cookie=cookie)
        if not self._knows(request):
            return _answer(HTTPStatus.FORBIDDEN, "token missing: open the address that robot-rl console printed\n")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            if urlsplit(request.headers.get("Origin", "")).netloc != request.headers.get("Host"):
                return _answer(HTTPStatus.FORBIDDEN, "this page is of another site\n")
            if len(self.pages) >= CONNECTIONS or len(self._scenes) >= CONNECTIONS:
                return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many open pages\n")
            return None
        if url.path.startswith("/scene/"):
            return _file(VISER)
        if url.path in FILES:
            return _file(WEB / FILES[url.path])
        return _answer(HTTPStatus.NOT_FOUND, "not found\n")

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        path = urlsplit(connection.request.path).path
        if path == "/socket":
            await self._serve_page(connection)
        elif path.startswith("/scene/") and (key := path.split("/")[2]) in self._keys:
            await self._serve_scene(connection, self._keys[key])
        else:
            await connection.close(POLICY_VIOLATION, "no such socket")

    async def _serve_page(self, connection: ServerConnection) -> None:
        page, key = secrets.token_hex(8), secrets.token_hex(16)
        self.pages[page], self._keys[key] = connection, page
        times: deque[float] = deque(maxlen=MOST)
        try:
            await connection.send(json.dumps({"page": page, "scene": key}))
            async for text in connection:
                now = time.monotonic()
                if len(times) == MOST and now - times[0] < 1.0:
                    raise Refused(f"more than {MOST} messages in a second")
                times.append(now)
                if not isinstance(text, str) or len(text) > LONGEST:
                    raise Refused("a message that is no text, or too long")
                if answer := self._handler.received(page, text):
                    await connection.send(json.dumps({"answer": answer}))
        except Refused as refusal:
            logger.warning("a page at %s was disconnected: it sent %s", connection.remote_address[0], refusal)
            self._handler.closed(page)  # before the other side has answered
            await connection.close(POLICY_VIOLATION, str(refusal)[:100])
        except ConnectionClosed:
            pass
        finally:
            del self.pages[page], self._keys[key]
            self._handler.closed(page)

    # ---- viser -------------------------------------------------------------------------------------------------
    async def _serve_scene(self, connection: ServerConnection, page: str) -> None:
        """Pass messages between a page's viewer and viser."""
        near = await asyncio.to_thread(socket.create_connection, (HOST, self.viewer.port), 5.0)
        ours = near.getsockname()[1]
        self._scenes[ours] = page
        self.viewer.send(ALLOW, ours)
        protocols = [connection.subprotocol] if connection.subprotocol else None
        try:
            async with connect(
                f"ws://{HOST}/", sock=near, subprotocols=protocols, max_size=None, compression=None
            ) as far:
                passes = [asyncio.create_task(_pass(a, b)) for a, b in ((connection, far), (far, connection))]
                await asyncio.wait(passes, return_when=asyncio.FIRST_COMPLETED)
                for task in passes:
                    task.cancel()
                await asyncio.gather(*passes, return_exceptions=True)
        finally:
            del self._scenes[ours]



async def _pass(source: Any, target: Any) -> None:
    async for message in source:
        await target.send(message)


def _viser_protocol(_: ServerConnection, offered: Any) -> Subprotocol | None:
    return next((name for name in offered if name.startswith("viser-v")), None)


def _file(path: Path) -> Response:
    return _answer(HTTPStatus.OK, path.read_bytes(), Content_Type=KINDS[path.suffix])


def _answer(status: HTTPStatus, body: str | bytes, **headers: str) -> Response:
    content = body.encode() if isinstance(body, str) else body
    own = {"Content-Type": "text/plain; charset=utf-8"} | {k.replace("_", "-"): v for k, v in headers.items()}
    own |= {
        "Content-Length": str(len(content)), "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer", "Content-Security-Policy": "frame-ancestors 'self'", "Connection": "close",
    }  # fmt: skip
    return Response(status, status.phrase, Headers(**own), content)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return the context of a certificate and its key; UserError if they cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"--certificate {certificate} and --key {key or certificate}: {error}") from None
    return context
