"""Entry of the processes of arm and hand: `python -m real.franka.arm FD JSON`, started by `real.franka.node`."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import pylibfranka as fci

from real.franka.link import Link
from real.held.report import Report

ERRORS = (fci.FrankaException, RuntimeError)
"""Exceptions of libfranka; in Python most are RuntimeErrors."""


LAST = 5.0
"""Longest wait to say the last words to a node that does not read, s."""


def words(error: Exception) -> str:
    """Return an error of libfranka without its prefix."""
    return str(error).removeprefix("libfranka: ").strip()


def serve(open_part: Callable[[dict[str, Any], Link], Any]) -> int:
    """Open a part from the node's settings, and run it until the node or SIGTERM ends it; return the exit status.

    A part has `run`, which returns soon after its attribute `ending` is set.
    """
    link, settings = Link(socket.socket(fileno=int(sys.argv[1]))), json.loads(sys.argv[2])
    try:
        part = open_part(settings, link)

        def end(*_: object) -> None:
            part.ending = True

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the node too
        part.run()
    except ERRORS as error:
        link.send(Report(words(error), True), LAST)
        return 1
    return 0
