"""Lockstep: a simulated robot's tick ends when every process that takes part has done what is due in it.

One process, the conductor, simulates the robot. The others follow its clock. In each tick::

    conductor   steps, publishes the robot's messages, then `/clock` with the new time t
    followers   deliver the messages published before t, run their threads that are due at t one after another,
                and publish `lockstep`: done with t
    conductor   goes on when all followers are done

A message carries the time of its publication and is delivered at the first later tick, sorted by time and topic. So the
result does not depend on how fast a process, a thread or the network is: two runs are the same to the bit.

Before a follower joins, time stands still for it: it connects and checks by the machine's clock.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from real.clock import WALL, Arrived, Step, Task, Ticks, readers
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
START = 1.0
"""Time of the first tick, s; a stamp of 0 means that no time is given."""
STANDS = 20.0
"""Time, by the machine's clock, without a tick after which a waiting thread gives up, s."""
FOREIGN = 60.0
"""A message whose stamp is so far ahead, s, is of a node that has another clock; it is delivered at the next tick."""
PATIENCE = 1.0
"""Longest wait for a message of the last tick, by the machine's clock, s."""
INTERRUPTED = 5.0
"""The same after a signal, for what a process does at its end, s."""
SOON = 1e-7
"""Rounding error of deadlines, s."""


class Source(Protocol):
    """Receiver of messages from the network; nodes may share one."""

    def drain(self, timeout: float = 0.0) -> None:
        """Take the messages that have arrived; if there are none, wait up to `timeout` s for one."""

    def listen(self, alone: bool) -> None:
        """Take messages as they arrive; with `alone` False, if possible, only in `drain`."""


class ClockError(UserError):
    """The simulated robot's clock stands still or jumps."""


class _Waiter:
    """A thread that waits for a time or a predicate."""

    def __init__(self, order: int, deadline: float, holds: Callable[[], bool] | None):
        self.order, self.deadline, self.holds = order, deadline, holds
        self.go = threading.Event()

    def due(self, now: float) -> bool:
        return now >= self.deadline - SOON or (self.holds is not None and self.holds())


class Lockstep:
    """Time of a simulated robot, in one process. Of the threads that sleep and wait by it, one runs at a time."""

    lockstep = True
    heard = True
    """A time has arrived, if it comes from another process."""

    def __init__(self, now: float = START, parties: int = 1):
        """Args: `parties`: number of threads that must `join` before time goes on."""
        self.time, self.parties = now, parties
        self.joined = False
        """The process takes part; before, time stands still."""
        self.on_join: Callable[[], None] = self.begin
        """Called when the process takes part; it calls `begin`, or waits until another thread has."""
        self.on_leave: Callable[[], None] = lambda: None
        self.sources: list[Source] = []
        self.lead = 0.0
        """Time by which this process's messages are published before its time, s: half a tick where the robot is
        simulated, whose messages of a tick are delivered in this tick."""
        self.failure = ""
        """Reason for which time does not go on; empty if it does."""
        self._lock = threading.Condition()
        self._waiters: list[_Waiter] = []
        self._running = 0
        """Number of threads that take part and do not wait."""
        self._orders: dict[int, int] = {}
        """Threads that take part, and their places in the order of what is due."""
        self._next_order = itertools.count(1)
        self._samples: list[tuple[float, str, int, int, Callable[[float], None]]] = []
        """Messages that have arrived: time of publication, topic, order of arrival, reader, delivery."""
        self.sent: Counter[str] = Counter()
        """Number of messages published since `take_sent`, by topic."""
        self._arrivals = itertools.count()
        self._ticked = self._advanced = time.monotonic()
        """When something was last done, and when time last went on, by the machine's clock."""
        self._interrupted = math.inf
        """When a signal ended a wait, by the machine's clock."""

    # ---- threads -----------------------------------------------------------------------------------------------
    def now(self) -> float:
        return self.time

    def add(self, source: Source) -> None:
        if source not in self.sources:
            self.sources.append(source)
        if self.joined:
            source.listen(False)

    def join(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if me in self._orders:
                return
            self._orders[me] = next(self._next_order)
            self._running += 1
            last = len(self._orders) == self.parties
        if last:
            self.on_join()
        with self._lock:
            self._lock.notify_all()
            if not self._lock.wait_for(lambda: self.joined or self.failure, STANDS) or self.failure:
                raise ClockError(self.failure or f"the others did not take part in lockstep within {STANDS:g} s")

    def begin(self) -> None:
        """Queue messages from now on, for the ticks."""
        self._ticked = self._advanced = time.monotonic()
        self.sent.clear()
        self.joined = True
        for source in self.sources:
            source.listen(False)

    def leave(self) -> None:
        with self._lock:
            if self._orders.pop(threading.get_ident(), None) is None:
                return
            self._running -= 1
            last = self.joined and not self._orders
            self.joined = self.joined and not last
            self._lock.notify_all()
        if last:
            self.on_leave()
            for source in self.sources:
                source.listen(True)

    def sleep_until(self, deadline: float) -> None:
        if self._takes_part():
            self._block(deadline, None)
            return
        while self.time < deadline - SOON and not self.failure:  # a thread that time does not wait for
            if not self.joined:
                raise ClockError("a thread slept before it took part in lockstep; this is a defect")
            time.sleep(0.001)

    def wait(self, holds: Callable[[], bool], timeout: float, arrived: Arrived = None) -> bool:
        if not self._takes_part():
            return WALL.wait(holds, timeout, arrived)
        if not holds():
            self._block(self.time + timeout, holds)
        return holds()

    def repeat(self, ticks: Ticks, step: Step, name: str, prepare: Callable[[], object]) -> Task:
        if not self.joined:
            raise ClockError(f"{name} started before this process took part in lockstep; this is a defect")
        task = _Task(self, next(self._next_order), ticks, step)
        with self._lock:
            self._waiters.append(task)
        return task

    def run(self, ticks: Ticks, step: Step) -> None:
        task = self.repeat(ticks, step, "a task", lambda: None)
        while not task.wait(60.0):
            pass

    def _takes_part(self) -> bool:
        return self.joined and threading.get_ident() in self._orders

    def _block(self, deadline: float, holds: Callable[[], bool] | None) -> None:
        """Let others run until the deadline, or until a predicate holds."""
        waiter = _Waiter(self._orders[threading.get_ident()], deadline, holds)
        with self._lock:
            self._waiters.append(waiter)
        self._rest()
        try:
            while not waiter.go.wait(1.0):
                self._check()
        except BaseException as error:
            if not isinstance(error, Exception):
                self._interrupted = min(self._interrupted, time.monotonic())
            with self._lock:
                if waiter in self._waiters:  # nobody has let it run: it runs now, out of turn, to end
                    self._waiters.remove(waiter)
                    self._running += 1
            raise

    def _check(self) -> None:
        """Raise ClockError if time will not go on."""
        now = time.monotonic()
        stands = now - self._ticked > STANDS or now - max(self._advanced, self._interrupted) > INTERRUPTED
        if self.failure or stands:
            stood = f"the robot's clock has stood still for {now - self._advanced:.0f} s: is its simulator running?"
            raise ClockError(self.failure or stood)

    def keep_waiting(self) -> None:
        """Take note that the simulator is there, and waits for others."""
        self._ticked = time.monotonic()

    def _rest(self) -> None:
        with self._lock:
            self._running -= 1
            self._lock.notify_all()

    # ---- time --------------------------------------------------------------------------------------------------
    def receive(self, published: float, topic: str, reader: int, deliver: Callable[[float], None]) -> None:
        """Queue a message, which was published at a time, s, for the next tick; before the process takes part, deliver
        it at once."""
        if not self.joined:
            deliver(self.time)
            return
        if published > self.time + FOREIGN:
            published = -math.inf
        with self._lock:
            self._samples.append((published, topic, next(self._arrivals), reader, deliver))

    def published(self, topic: str) -> float:
        self.sent[topic] += 1
        return self.time - self.lead

    def take_sent(self) -> Counter[str]:
        """Return the numbers of messages published since the last call, by topic."""
        sent, self.sent = self.sent, Counter()
        return sent

    def _collect(self, now: float, expected: Mapping[str, int]) -> None:
        """Take the messages that have arrived, until all `expected` ones of the last tick are there: under load the
        kernel delivers a later one of another process first."""
        ends, pause, since = time.monotonic() + PATIENCE, 0.0, self.time - self.lead - SOON
        while True:
            for source in self.sources:
                source.drain(pause)
            if not expected or not self.joined:
                return
            with self._lock:
                here = Counter(s[3] for s in self._samples if since <= s[0] < now - SOON)
                missing = [t for reader, t in list(readers.items()) if t in expected and here[reader] < expected[t]]
            if not missing:
                return
            if time.monotonic() > ends:
                logger.warning("a message on %s did not arrive: this run may differ from others", missing[0])
                return
            pause = 0.005

    def deliver(self, now: float, expected: Mapping[str, int] | None = None) -> None:
        """Set the time to `now`, s, and deliver the messages published before; wait for the `expected` number of
        messages by topic."""
        self._settle()
        self._collect(now, expected or {})
        if now > self.time + SOON:
            self._ticked = self._advanced = time.monotonic()
        with self._lock:
            early = [sample for sample in self._samples if sample[0] < now - SOON]
            self._samples = [sample for sample in self._samples if sample[0] >= now - SOON]
            self.time = now
        for _, _, _, _, deliver in sorted(early, key=lambda sample: sample[:3]):
            deliver(now)

    def _settle(self) -> None:
        """Wait for the threads that run: what they do belongs to the present time."""
        if self._running:
            with self._lock:
                self._lock.wait_for(lambda: self._running == 0 or not self.joined)

    def run_due(self) -> None:
        """Run what is due, one thread after another."""
        while self.joined:
            self._settle()
            with self._lock:
                due = [waiter for waiter in self._waiters if waiter.due(self.time)]
                if not due or not self.joined:
                    break
                first = min(due, key=lambda waiter: waiter.order)
                self._waiters.remove(first)
                self._ticked = time.monotonic()
                if not isinstance(first, _Task):
                    self._running += 1
                    first.go.set()
                    continue
            if first.run():
                with self._lock:
                    self._waiters.append(first)

    def advance(self, now: float, expected: Mapping[str, int] | None = None) -> None:
        """Deliver as `deliver`, and run what is due."""
        self.deliver(now, expected)
        self.run_due()

    def fail(self, reason: str) -> None:
        """End all waiting with an error."""
        with self._lock:
            self.failure = reason
            self._lock.notify_all()


class _Task(_Waiter):
    """A periodic step, which runs in the thread that advances the time: a thread of its own would have to be woken."""

    def __init__(self, clock: Lockstep, order: int, ticks: Ticks, step: Step):
        super().__init__(order, ticks.next, None)
        self._clock, self._ticks, self._step, self._ended = clock, ticks, step, False

    def run(self) -> bool:
        """Do a step; return whether another follows."""
        try:
            self._ended = not self._step(self._ticks.tick())
        except BaseException:
            self._ended = True
            raise
        self.deadline = self._ticks.next
        return not self._ended

    def wait(self, timeout: float) -> bool:
        self._clock.wait(lambda: self._ended, timeout)
        return self._ended

    def is_alive(self) -> bool:
        return not self._ended
