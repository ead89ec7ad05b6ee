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

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable

from real.clock import WALL, Arrived, Thread
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
START = 1.0
"""Time of the first tick, s; a stamp of 0 means that no time is given."""
STANDS = 20.0
"""Time, by the machine's clock, without a tick after which a waiting thread gives up, s."""
FOREIGN = 60.0
"""A message whose stamp is so far ahead, s, is of a node that has another clock; it is delivered at the next tick."""
SOON = 1e-7
"""Rounding error of deadlines, s."""


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

    def __init__(self, now: float = START):
        """Create it in the process's main thread."""
        self.time = now
        self.joined = False
        """The process takes part; before, time stands still."""
        self.on_join: Callable[[], None] = lambda: None
        self.on_leave: Callable[[], None] = lambda: None
        self.drains: list[Callable[[], None]] = []
        """Functions that take the messages that have arrived from the network."""
        self.lead = 0.0
        """Time by which this process's messages are published before its time, s: half a tick for the conductor, whose
        messages of a tick are delivered in this tick."""
        self.failure = ""
        """Reason for which time does not go on; empty if it does."""
        self._lock = threading.Condition()
        self._waiters: list[_Waiter] = []
        self._running = 1
        self._orders = {threading.get_ident(): 0}
        self._next_order = itertools.count(1)
        self._samples: list[tuple[float, str, int, Callable[[float], None]]] = []
        self._arrivals = itertools.count()
        self._ticked = time.monotonic()

    # ---- threads -----------------------------------------------------------------------------------------------
    def now(self) -> float:
        return self.time

    def join(self) -> None:
        if not self.joined:
            self.joined = True
            self._ticked = time.monotonic()
            self.on_join()

    def leave(self) -> None:
        if self.joined:
            self.joined = False
            self.on_leave()
            with self._lock:
                self._lock.notify_all()

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

    def start(self, target: Callable[[], None], name: str) -> Thread:
        if not self.joined:
            raise ClockError("a thread started before the process took part in lockstep; this is a defect")
        waiter = _Waiter(next(self._next_order), self.time, None)

        def run() -> None:
            self._orders[threading.get_ident()] = waiter.order
            waiter.go.wait()
            try:
                target()
            finally:
                thread.ended = True
                self._rest()

        thread = _LockstepThread(run, name, self)
        with self._lock:
            self._waiters.append(waiter)
        thread.start()
        return thread

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
                if self.failure or time.monotonic() - self._ticked > STANDS:
                    raise ClockError(
                        self.failure or f"the robot's clock has stood still for {STANDS:g} s: is its simulator running?"
                    )
        except BaseException:
            with self._lock:
                if waiter in self._waiters:  # nobody has let it run: it runs now, out of turn, to end
                    self._waiters.remove(waiter)
                    self._running += 1
            raise

    def _rest(self) -> None:
        with self._lock:
            self._running -= 1
            self._lock.notify_all()

    # ---- time --------------------------------------------------------------------------------------------------
    def receive(self, published: float, topic: str, deliver: Callable[[float], None]) -> None:
        """Queue a message, which was published at a time, s, for the next tick; before the process takes part, deliver
        it at once."""
        if not self.joined:
            deliver(self.time)
            return
        if published > self.time + FOREIGN:
            published = -math.inf
        with self._lock:
            self._samples.append((published, topic, next(self._arrivals), deliver))

    def published(self) -> float:
        """Return the time, s, of a message that is published now."""
        return self.time - self.lead

    def deliver(self, now: float) -> None:
        """Set the time to `now`, s, and deliver the messages published before."""
        with self._lock:
            # What still runs belongs to the time before.
            self._lock.wait_for(lambda: self._running == 0 or not self.joined)
        for drain in self.drains:
            drain()
        self._ticked = time.monotonic()
        with self._lock:
            early = [sample for sample in self._samples if sample[0] < now - SOON]
            self._samples = [sample for sample in self._samples if sample[0] >= now - SOON]
            self.time = now
        for _, _, _, deliver in sorted(early, key=lambda sample: sample[:3]):
            deliver(now)

    def run_due(self) -> None:
        """Run what is due, one thread after another."""
        while self.joined:
            with self._lock:
                self._lock.wait_for(lambda: self._running == 0 or not self.joined)
                due = [waiter for waiter in self._waiters if waiter.due(self.time)]
                if not due or not self.joined:
                    break
                first = min(due, key=lambda waiter: waiter.order)
                self._waiters.remove(first)
                self._running += 1
                first.go.set()
        self._ticked = time.monotonic()

    def advance(self, now: float) -> None:
        """Set the time to `now`, s, deliver the messages published before, and run what is due."""
        self.deliver(now)
        self.run_due()

    def rest(self) -> None:
        """Take note that the thread that created this clock does not wait by it: it conducts."""
        with self._lock:
            self._running = 0

    def fail(self, reason: str) -> None:
        """End all waiting with an error."""
        logger.error("%s", reason)
        self.failure = reason


class _LockstepThread(Thread):
    """Thread whose end is waited for by the clock."""

    def __init__(self, target: Callable[[], None], name: str, clock: Lockstep):
        super().__init__(target, name)
        self._clock, self.ended = clock, False

    def wait(self, timeout: float) -> bool:
        with contextlib.suppress(ClockError):
            self._clock.wait(lambda: self.ended, timeout)
        self.join(0.1)
        return not self.is_alive()
