"""Wait sets: call a handler for each DDS entity that triggers."""

from __future__ import annotations

import ctypes
import itertools
import logging
from collections.abc import Callable
from typing import Any

from cyclonedds import core

_SLOTS = 256  # entities that one wake-up reports at most
_log = logging.getLogger(__name__)


class Watch:
    """Wait set whose entities have a handler each. One thread calls `run`."""

    def __init__(self, participant: core.Entity) -> None:
        self._waitset = core.WaitSet(participant)
        self._handlers: dict[int, Callable[[], None]] = {}
        self._tokens = itertools.count(1)
        self._slots = (ctypes.c_void_p * _SLOTS)()
        self._wait, self._ref = self._waitset._waitset_wait, self._waitset._ref

    def attach(self, entity: core.Entity, handler: Callable[[], None]) -> int:
        """Call the handler when the entity triggers; return a token for `detach`."""
        token = next(self._tokens)
        self._handlers[token] = handler
        # The wait set returns the token at a wake-up, which identifies the entity.
        self._waitset._waitset_attach(self._ref, entity._ref, ctypes.c_void_p(token))
        return token

    def detach(self, entity: core.Entity, token: int) -> None:
        """Undo `attach`."""
        self._waitset._waitset_detach(self._ref, entity._ref)
        self._handlers.pop(token, None)

    def run(self, timeout: int) -> bool:
        """Wait up to `timeout` ns until entities trigger, and call their handlers; return False after `delete`."""
        count: Any = self._wait(self._ref, self._slots, _SLOTS, timeout)
        for token in self._slots[: min(count, _SLOTS)] if count > 0 else ():
            handler = self._handlers.get(token or 0)
            if handler is None:
                continue
            try:
                handler()
            except Exception:  # must not end the only reader thread
                if token in self._handlers:  # else the entity was deleted meanwhile
                    _log.exception("a handler of the bus failed")
        return bool(count >= 0)

    def delete(self) -> None:
        """Delete the wait set; a waiting `run` returns."""
        self._handlers.clear()
        self._waitset.__del__()
