"""Conductor of a lockstep (`real.lockstep`): it simulates the robot, tells the time, and waits for its followers.

A follower finds its address on the topic `lockstep`. Other nodes get the time on `/clock`.
"""

from __future__ import annotations

import logging
import math
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence

from real import clock
from real.bus import names
from real.bus.messages import make
from real.bus.node import Node
from real.bus.qos import LATCHED, QoS
from real.lockstep import SOON, START, Lockstep
from real.tick_line import ADDRESS, ADDRESS_TOPIC, CLOCK, CLOCK_TOPIC, JOIN, LEFT, WAIT, Line, Sent, read

logger = logging.getLogger(__name__)
NAMED = 5.0
"""Time between two lines that name the followers that the robot waits for, s."""


class Conductor:
    """The clock of a simulated robot, and its followers."""

    def __init__(
        self, node: Node, followers: Sequence[str], period: float, speed: float = 0.0, parties: int = 0
    ):  # fmt: skip
        """Create it before the simulated robot, whose subscriptions it concerns.

        Args: `followers`: names of the nodes in other processes to wait for. `period`: of a tick, s. `speed`: largest
        multiple of real time; 0: no limit. `parties`: number of threads of this process that take part."""
        self.clock = Lockstep(parties=parties)
        self.clock.lead, self._parties = period / 2, parties
        clock.use(self.clock)
        self.node, self.period, self.speed = node, period, speed
        self._count, self._began = 0, time.monotonic()
        self._waits = {names.expand(name, node.name, node.namespace): 0.0 for name in followers}
        """Followers, and the time that they are done with, s."""
        self._sent: Sent = Counter()
        """Messages that followers have published in this tick."""
        self._lines: list[Line] = []
        self._named = math.inf
        """When the missing followers are named next, by the machine's clock."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._publisher = node.publisher(CLOCK, CLOCK_TOPIC, QoS(depth=100))
        self._address = node.publisher(ADDRESS, ADDRESS_TOPIC, LATCHED)
        self._address.publish(make(ADDRESS, data="{}:{}".format(*self._server.getsockname())))
        self.clock.add(node.source)

    def begin(self, publish: Callable[[], None], over: Callable[[], bool]) -> bool:
        """Publish the first state, by `publish`, until all followers take part; return False if `over()` before."""
        if not self._parties:
            self.clock.begin()
        while not (over() or (self._all_done() and self.clock.joined)):
            publish()
            self.clock.take_sent()
            self._announce(Counter())
            self._listen(0.05)
            self._name_missing()
        self._named = math.inf
        self.clock.advance(self.clock.time)
        self._began = time.monotonic()
        return not over()

    def tick(self, step: Callable[[], None], over: Callable[[], bool]) -> None:
        """Deliver the followers' messages, `step()` the robot, and let the followers do what is due."""
        self._count += 1
        now = START + self._count * self.period
        sent, self._sent = self._sent + self.clock.take_sent(), Counter()
        self.clock.deliver(now, sent)
        step()
        stepped = self.clock.take_sent()
        self.clock.advance(now, stepped)
        self._announce(sent + stepped)
        while not (self._all_done() or over()):
            self._listen(0.5)
            self._name_missing()
        self._named = math.inf
        alone = all(done == LEFT for done in self._waits.values()) and not (self._parties and self.clock.joined)
        if alone:
            self._listen(0.0)
        if speed := (self.speed or float(alone)):
            pause = self._began + self._count * self.period / speed - time.monotonic()
            if abs(pause) > 1.0:  # neither catch up, nor wait for what ran faster
                self._began -= pause
            elif pause > 0:
                time.sleep(pause)

    def close(self) -> None:
        """Leave the followers without a clock."""
        for line in self._lines:
            line.connection.close()
        self._selector.close()
        self._server.close()

    def _all_done(self) -> bool:
        return all(done >= self.clock.time - SOON for done in self._waits.values())

    def _name_missing(self) -> None:
        """Log every `NAMED` seconds which followers the robot waits for."""
        now = time.monotonic()
        self._named = min(self._named, now + NAMED)
        missing = [name for name, done in self._waits.items() if done < self.clock.time - SOON]
        if now > self._named and missing:
            self._named = now + NAMED
            here = [line.name for line in self._lines if line.name and line.name not in missing]
            others = f"; {', '.join(here)} takes part" if here else ""
            logger.warning("the robot waits for %s%s", ", ".join(missing), others)
            for line in self._lines:
                line.say(WAIT)

    def _announce(self, sent: Sent) -> None:
        time_ns = round(1e9 * self.clock.time)
        # 256 is CDR's little-endian header; `encode` takes ten times as long.
        self._publisher.publish(struct.pack("<IiI", 256, *divmod(time_ns, 10**9)))
        for line in self._lines:
            line.say_time(self.clock.time, sent)

    def _listen(self, timeout: float) -> None:
        """Wait up to `timeout` s for followers, and for what they say."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._lines.append(Line(self._server.accept()[0]))
                self._selector.register(self._lines[-1].connection, selectors.EVENT_READ, self._lines[-1])
                continue
            try:
                self._hear(key.data)
            except (OSError, ValueError):  # it has gone, or is no follower
                self._drop(key.data)

    def _hear(self, line: Line) -> None:
        for text in line.hear():
            if not line.name:
                line.name = text
                continue
            if text == JOIN:
                self._waits[line.name] = 0.0
                line.say(JOIN)
                line.say_time(self.clock.time, Counter())
                continue
            self._waits[line.name], sent = read(text)
            self._sent += sent

    def _drop(self, line: Line) -> None:
        self._lines.remove(line)
        self._selector.unregister(line.connection)
        line.connection.close()
        if self._waits.get(line.name, LEFT) < LEFT:
            logger.warning("%s has gone: the robot no longer waits for it", line.name)
            self._waits[line.name] = LEFT
