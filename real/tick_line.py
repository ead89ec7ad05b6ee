"""What the conductor of a lockstep and its followers say to each other, over TCP: DDS takes 0.3 ms per message."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from functools import lru_cache

ADDRESS, ADDRESS_TOPIC = "std_msgs/msg/String", "lockstep"
"""Topic of the conductor's address."""
CLOCK, CLOCK_TOPIC = "rosgraph_msgs/msg/Clock", "/clock"
LEFT = float("inf")
"""Time with which a follower takes part no longer."""
JOIN = "join"
WAIT = "wait"
Sent = Counter[str]
"""Numbers of messages that were published in a tick, by topic."""


class Line:
    """Connection of a follower and the conductor. It carries lines of text: a time, s, and the messages published in
    its tick, as `topic=count ...`. A follower says what it is done with. First it says its name, and to take part
    `JOIN`, to which the conductor answers `JOIN` and the present time. In a tick that takes long the conductor says
    `WAIT` now and then."""

    def __init__(self, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection, self.name, self._rest = connection, "", b""

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the end is noticed in `hear`
            self.connection.sendall(text.encode() + b"\n")

    def say_time(self, now: float, sent: Sent) -> None:
        self.say(f"{now!r} {' '.join(f'{topic}={count}' for topic, count in sent.items())}")

    def hear(self) -> list[str]:
        """Return the lines that have arrived; ConnectionError after the other side's end."""
        data = self.connection.recv(65536)
        if not data:
            raise ConnectionError("the other side has gone")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]


def read(text: str) -> tuple[float, Sent]:
    """Return what `Line.say_time` said."""
    now, _, sent = text.partition(" ")
    return float(now), _counts(sent)


@lru_cache(1000)  # most ticks are alike
def _counts(text: str) -> Sent:
    return Counter({topic: int(count) for topic, _, count in (word.rpartition("=") for word in text.split())})
