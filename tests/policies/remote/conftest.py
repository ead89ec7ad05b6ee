"""Foreign servers: any program that speaks openpi's protocol, or something else, at a real socket of this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve


@pytest.fixture
def foreign() -> Iterator[Callable[..., str]]:
    """Serve with a function of the connection; return the address."""
    running: list[tuple[Server, threading.Thread]] = []

    def start(talk: Callable[[ServerConnection], Any], **options: Any) -> str:
        server = serve(talk, "127.0.0.1", 0, compression=None, max_size=None, **options)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return f"ws://127.0.0.1:{server.socket.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
