"""Time of processes in lockstep (`real.lockstep`): the conductor, those that follow it, and what they say.

Conductor and followers talk over TCP on one machine, as DDS takes 0.3 ms from one process to the other. A follower
finds the conductor's address on the topic `lockstep`. Other nodes get the time on `/clock`.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from real import clock
from real.bus import names
from real.bus.messages import make
from real.bus.node import Node, Stamped
from real.bus.qos import QoS
from real.bus.stamps import seconds
from real.clock import WALL
from real.lockstep import SOON, START, ClockError, Lockstep
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
CLOCK, ADDRESS = "rosgraph_msgs/msg/Clock", "std_msgs/msg/String"
CLOCK_TOPIC, ADDRESS_TOPIC = "/clock", "lockstep"
LATCHED = QoS(depth=1, transient_local=True)
LEFT = float("inf")
"""Time with which a follower takes part no longer."""
JOIN = "join"
FIRST = 10.0
"""Longest wait for the first time, s."""
Sent = Counter[str]
"""Numbers of messages that were published in a tick, by topic."""


class Line:
    """Connection of a follower and the conductor. It carries lines of text: a time, s, and the messages published in
    its tick, as `topic=count ...`. A follower says what it is done with. First it says its name, and to take part
    `JOIN`, to which the conductor answers `JOIN` and the present time."""

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


class TimeSource:
    """The time of a process that follows the clock of a simulated robot. Create it in the process's first node."""

    def __init__(self, node: Node):
        self.clock = Lockstep()
        clock.use(self.clock)
        self.node, self._heard = node, False
        self._waited = threading.Event()
        """The conductor waits for this process."""
        self._line: Line | None = None
        """Connection to a conductor; without it, `/clock` has the time."""
        self._times: deque[str] = deque()
        """What was said on the line, or as there on `/clock`."""
        self.clock.on_join, self.clock.on_leave = self._join, self._leave
        self._clock = node.subscribe(CLOCK, CLOCK_TOPIC, QoS(depth=100), self._on_clock, at_once=True)
        self._address = node.subscribe(ADDRESS, ADDRESS_TOPIC, LATCHED, self._on_address, at_once=True)
        # The bus's thread goes on discovering peers while another thread advances the time.
        threading.Thread(target=self._run, name="lockstep", daemon=True).start()

    def _on_clock(self, sample: Stamped) -> None:
        """Take the time of a simulator that does not wait for others."""
        self._times.append(repr(seconds(sample.msg.clock)))

    def _on_address(self, sample: Stamped) -> None:
        host, _, port = sample.msg.data.rpartition(":")
        try:
            self._line = Line(socket.create_connection((host, int(port)), 1.0))
        except (OSError, ValueError) as error:
            logger.error("%s: %s. Run nodes in lockstep on the simulator's machine", sample.msg.data, error)
            return
        self._line.say(self.node.full_name)

    def _leave(self) -> None:
        if self._line is not None:
            self._line.say_time(LEFT, Counter())

    def _join(self) -> None:
        if not WALL.wait(lambda: self._heard, FIRST):
            raise ClockError(
                f"use_sim_time is true, but nothing arrived on {CLOCK_TOPIC} within {FIRST:g} s: start the simulator "
                "(robot-rl twin --lockstep), or leave use_sim_time out"
            )
        if self._line is None:
            self.clock.begin()
            return
        self._waited.clear()
        self._line.say(JOIN)
        if not self._waited.wait(FIRST):
            raise ClockError(f"the robot's simulator does not answer within {FIRST:g} s: is it still running?")

    def _said(self) -> Iterator[tuple[float, Sent]]:
        """Yield the times that are said, until the node is closed."""
        while True:
            try:
                if self._line is None:
                    (self._address if self._address.matched else self._clock).poll(0.2)
                else:
                    self._times.extend(self._line.hear())
            except TimeoutError:
                self._address.poll(0.0)  # raises if the node is closed
            except OSError:
                self._line = None
                if self.clock.joined:
                    self.clock.fail("the robot's simulator has ended")
            while self._times:
                if (text := self._times.popleft()) == JOIN:
                    self.clock.begin()
                    self._waited.set()
                else:
                    yield read(text)

    def _run(self) -> None:
        try:
            for now, sent in self._said():
                if self._heard and now < self.clock.time - SOON:
                    raise ClockError(
                        f"the robot's clock jumped back from {self.clock.time:.3f} to {now:.3f} s: was its simulator "
                        "restarted? Start this again too"
                    )
                self._heard = True
                self.clock.advance(now, sent)
                if self.clock.joined and self._line is not None:
                    self._line.say_time(now, self.clock.take_sent())
        except ClockError as error:
            self.clock.fail(str(error))
        except UserError:  # the node is closed
            if clock.current() is self.clock:
                clock.use(WALL)
        except Exception as error:
            logger.exception("lockstep")
            self.clock.fail(f"lockstep ended: {error}")


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

    def _announce(self, sent: Sent) -> None:
        time_ns = round(1e9 * self.clock.time)
        self._publisher.publish(struct.pack("<IiI", 256, *divmod(time_ns, 10**9)))  # `encode` takes ten times as long
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
            except OSError:
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
