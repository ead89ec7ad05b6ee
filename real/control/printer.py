"""Printing without waiting for the reader."""

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue


class BackgroundPrinter:
    """Print messages in a separate thread, so that a slow or closed reader never delays the robot."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="printer", daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> None:
        self._texts.put(text)

    def close(self) -> None:
        """Print the remaining messages within one second."""
        self._texts.put(None)
        self._thread.join(1.0)

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            with contextlib.suppress(Exception):
                self._say(text)
