"""Time of processes in lockstep (`real.lockstep`): the conductor, those that follow it, and their topics."""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from real import clock
from real.bus import names
from real.bus.node import Node, Stamped
from real.bus.qos import QoS
from real.bus.stamps import seconds
from real.clock import WALL
from real.lockstep import SOON, START, ClockError, Lockstep
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
CLOCK, DONE = "rosgraph_msgs/msg/Clock", "std_msgs/msg/Header"
CLOCK_TOPIC, TICK_TOPIC, DONE_TOPIC = "/clock", "lockstep/tick", "lockstep/done"
"""Topics: the time; the same with numbers of messages; the followers' answers. The last two are Headers:
the time, and as frame_id `topic=count …`, after `node|` in an answer: the messages that were published in the tick."""
LEFT = 2**31 - 1
"""Time, s, with which a follower takes part no longer."""
RELIABLE = QoS(depth=100)
FIRST = 10.0
"""Longest wait for the first time, s."""


class TimeSource:
    """The time of a process that follows the clock of a simulated robot."""

    _only: TimeSource | None = None
    """The process's follower; further nodes use it too."""

    @classmethod
    def of(cls, node: Node) -> None:
        """Make this process, in its main thread, follow the clock that a node hears; at the first call only."""
        cls._only = cls._only or cls(node)
        cls._only.nodes.append(node)
        cls._only.clock.drains.append(node.drain)

    def __init__(self, node: Node):
        self.clock = Lockstep()
        clock.use(self.clock)
        self.node, self._ticks = node, 0
        self.nodes: list[Node] = []
        self._times: deque[tuple[float, Counter[str]]] = deque()
        self._done = node.publisher(DONE, DONE_TOPIC, RELIABLE)
        self.clock.on_join, self.clock.on_leave = self._join, self._leave
        self._clock = node.subscribe(CLOCK, CLOCK_TOPIC, RELIABLE, self._on_clock, at_once=True)
        self._tick = node.subscribe(DONE, TICK_TOPIC, RELIABLE, self._on_tick, at_once=True)
        # The bus's thread goes on discovering peers while another thread advances the time.
        threading.Thread(target=self._run, name="lockstep", daemon=True).start()

    def _on_clock(self, sample: Stamped) -> None:
        """Take the time of a simulator that does not wait for others."""
        self._times.append((seconds(sample.msg.clock), Counter()))

    def _on_tick(self, sample: Stamped) -> None:
        self._times.append((seconds(sample.msg.stamp), _counts(sample.msg.frame_id)))

    def _leave(self) -> None:
        self._say(float(LEFT))
        for node in self.nodes:
            node.listen(True)

    def _join(self) -> None:
        for node in self.nodes:
            node.listen(False)
        if not WALL.wait(lambda: self._ticks > 0, FIRST):
            raise ClockError(
                f"use_sim_time is true, but nothing arrived on {CLOCK_TOPIC} within {FIRST:g} s: start the simulator "
                "(robot-rl twin --lockstep), or leave use_sim_time out"
            )

    def _say(self, done: float) -> None:
        with contextlib.suppress(UserError):  # the node is closed
            self._done.publish(_header(done, f"{self.node.full_name}|{_text(self.clock.take_sent())}"))

    def _run(self) -> None:
        while True:
            while not self._times:
                try:
                    (self._tick if self._tick.matched else self._clock).poll(0.2)
                except UserError:  # the node is closed
                    TimeSource._only = None
                    clock.use(WALL)
                    return
            now, sent = self._times.popleft()
            self._ticks += 1
            if now < self.clock.time - SOON and self._ticks > 1:
                self.clock.fail(
                    f"the robot's clock jumped back from {self.clock.time:.3f} to {now:.3f} s: was its simulator "
                    "restarted? Start this again too"
                )
                return
            try:
                self.clock.advance(now, sent)
            except Exception as error:
                logger.exception("lockstep")
                self.clock.fail(f"lockstep ended: {error}")
                return
            if self.clock.joined:
                self._say(now)


class Conductor:
    """The clock of a simulated robot, and its followers."""

    def __init__(self, node: Node, followers: Sequence[str], period: float, speed: float = 0.0):
        """Args: `followers`: names of the nodes to wait for. `period`: of a tick, s. `speed`: largest multiple of real
        time; 0: no limit."""
        self.clock = Lockstep()
        self.clock.lead, self.clock.joined = period / 2, True
        self.clock.rest()
        clock.use(self.clock)
        self.node, self.period, self.speed = node, period, speed
        self._count, self._began = 0, time.monotonic()
        self._waits = {names.expand(name, node.name, node.namespace): 0.0 for name in followers}
        """Followers, and the time that they are done with, s."""
        self._sent: Counter[str] = Counter()
        """Messages that followers have published in this tick, by topic."""
        self._ticks = node.publisher(DONE, TICK_TOPIC, RELIABLE)
        self._publisher = node.publisher(CLOCK, CLOCK_TOPIC, RELIABLE)
        self.clock.drains.append(node.drain)
        self._answers = node.subscribe(DONE, DONE_TOPIC, RELIABLE, self._on_done, at_once=True)

    def _on_done(self, sample: Stamped) -> None:
        name, _, sent = sample.msg.frame_id.partition("|")
        self._waits[name] = seconds(sample.msg.stamp)
        self._sent += _counts(sent)

    def begin(self, publish: Callable[[], None], over: Callable[[], bool]) -> bool:
        """Publish the first state, by `publish`, until all followers take part; return False if `over()` before."""
        while not over():
            publish()
            self.clock.take_sent()
            self._announce(Counter())
            self._answers.poll(0.05)
            if self._all_done():
                break
        self.node.listen(False)
        self._began = time.monotonic()
        return not over()

    def tick(self, step: Callable[[], None], over: Callable[[], bool]) -> None:
        """Deliver the followers' messages, `step()` the robot, and let the followers do what is due."""
        self._count += 1
        now = START + self._count * self.period
        sent, self._sent = self._sent, Counter()
        self.clock.deliver(now, sent)
        step()
        sent += self.clock.take_sent()
        self.clock.advance(now)
        self._announce(sent)
        asked = time.monotonic()
        while not (self._all_done() or over()):
            self._answers.poll(0.5)
            if time.monotonic() - asked > 0.5:
                asked = time.monotonic()
                self._drop_the_dead()
        alone = all(done >= LEFT for done in self._waits.values())
        if speed := (self.speed or float(alone)):
            pause = self._began + self._count * self.period / speed - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            elif pause < -1.0:
                self._began -= pause  # do not catch up

    def _all_done(self) -> bool:
        return all(done >= self.clock.time - SOON for done in self._waits.values())

    def _drop_the_dead(self) -> None:
        alive = self._answers.writers()
        for name in self._waits:
            if name not in alive and self._waits[name] < LEFT:
                logger.warning("%s has gone: the robot no longer waits for it", name)
                self._waits[name] = float(LEFT)

    def _announce(self, sent: Counter[str]) -> None:
        if self._publisher.matched:
            self._publisher.publish(LITTLE_ENDIAN + _time(self.clock.time))
        self._ticks.publish(_header(self.clock.time, _text(sent)))


LITTLE_ENDIAN = b"\x00\x01\x00\x00"
"""Header of CDR."""


def _time(now: float) -> bytes:
    """Return a time, s, as a builtin_interfaces/Time in CDR."""
    return struct.pack("<iI", *divmod(round(now * 1e9), 10**9))


def _header(now: float, text: str) -> bytes:
    """Return a std_msgs/Header in CDR."""
    name = text.encode() + b"\0"
    return LITTLE_ENDIAN + _time(now) + struct.pack("<I", len(name)) + name + bytes(-len(name) % 4)


def _text(sent: Counter[str]) -> str:
    return " ".join(f"{topic}={count}" for topic, count in sent.items())


def _counts(text: str) -> Counter[str]:
    """Return what `_text` wrote."""
    return Counter({topic: int(count) for topic, _, count in (word.partition("=") for word in text.split())})
