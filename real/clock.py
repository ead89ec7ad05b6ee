"""The clock of the robot side: everything in `real` takes its time from here.

By default it is the machine's monotonic clock. In lockstep (ROS: use_sim_time) it is the clock of a simulated robot:
time stands still until everything that is due has been done (`real.lockstep`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

SPIN = 0.0002
"""Duration of the busy-wait before a deadline, s: the scheduler may wake a sleeping thread this late."""
Arrived = threading.Condition | None
"""Condition that is notified when a predicate may have become true; None: there is none."""


class Clock(Protocol):
    """Source of time, by which threads sleep and wait."""

    lockstep: bool
    heard: bool

    def now(self) -> float: ...

    def sleep_until(self, deadline: float) -> None: ...

    def wait(self, holds: Callable[[], bool], timeout: float, arrived: Arrived = None) -> bool: ...

    def repeat(self, ticks: Ticks, step: Step, name: str, prepare: Callable[[], object]) -> Task: ...

    def run(self, ticks: Ticks, step: Step) -> None: ...

    def receive(self, published: float, topic: str, reader: int, deliver: Callable[[float], None]) -> None: ...

    def published(self, topic: str) -> float | None: ...

    def add(self, source: Any) -> None: ...

    def join(self) -> None: ...

    def leave(self) -> None: ...


class Ticks(Protocol):
    """Deadlines of a periodic step, see `real.control.timing.Ticker`."""

    next: float

    def tick(self) -> float:
        """Take note of a tick; return its lateness, s."""


Step = Callable[[float], bool]
"""Step of a periodic task: gets its lateness, s, and returns whether another follows."""


class Task(Protocol):
    """A periodic task that has started."""

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` s for the task's end; return whether it has ended."""

    def is_alive(self) -> bool:
        """Return whether another step follows."""


class _Thread(threading.Thread):
    def wait(self, timeout: float) -> bool:
        self.join(timeout)
        return not self.is_alive()


class Wall:
    """The machine's monotonic clock."""

    lockstep = False
    heard = True

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, deadline: float) -> None:
        pause = deadline - SPIN - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        while time.monotonic() < deadline:
            pass

    def wait(self, holds: Callable[[], bool], timeout: float, arrived: Arrived = None) -> bool:
        if arrived is not None:
            with arrived:
                return arrived.wait_for(holds, timeout)
        deadline = time.monotonic() + timeout
        while not (held := holds()) and time.monotonic() < deadline:
            time.sleep(0.005)
        return held

    def repeat(self, ticks: Ticks, step: Step, name: str, prepare: Callable[[], object]) -> Task:
        def run() -> None:
            prepare()
            self.run(ticks, step)

        thread = _Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def run(self, ticks: Ticks, step: Step) -> None:
        while True:
            self.sleep_until(ticks.next)
            if not step(ticks.tick()):
                return

    def receive(self, published: float, topic: str, reader: int, deliver: Callable[[float], None]) -> None:
        deliver(time.monotonic())

    def published(self, topic: str) -> float | None:
        return None

    def add(self, source: Any) -> None:
        pass

    def join(self) -> None:
        pass

    def leave(self) -> None:
        pass


WALL = Wall()
_current: Clock = WALL


def use(clock: Clock) -> None:
    """Make `clock` the clock of this process."""
    global _current
    _current = clock


def current() -> Clock:
    """Return the clock of this process."""
    return _current


def in_lockstep() -> bool:
    """Return whether time is that of a simulated robot."""
    return _current.lockstep


def is_silent() -> bool:
    """Return whether time is that of a simulated robot, of which nothing has been heard."""
    return not _current.heard


def now() -> float:
    """Return the time, s, since an arbitrary start."""
    return _current.now()


def ros_time() -> int:
    """Return the time for a message's header, ns: since 1970, or in lockstep the simulated robot's."""
    return round(1e9 * _current.now()) if _current.lockstep else time.time_ns()


def sleep_until(deadline: float) -> None:
    """Return at a time, s."""
    _current.sleep_until(deadline)


def sleep(seconds: float) -> None:
    """Return after `seconds`."""
    _current.sleep_until(_current.now() + seconds)


def pause(seconds: float, ended: Callable[[float], int]) -> int:
    """Return after `seconds`, or as soon as `ended(s)`, which waits up to `s` by the machine's clock, returns a number
    other than 0; return this number."""
    if not _current.lockstep:
        return ended(seconds)
    sleep(seconds)
    return ended(0.0)


def wait(holds: Callable[[], bool], timeout: float, arrived: Arrived = None) -> bool:
    """Wait up to `timeout` s until `holds()` is true; return its value. `arrived` is notified when it may change."""
    return _current.wait(holds, timeout, arrived)


def repeat(ticks: Ticks, step: Step, name: str, prepare: Callable[[], object] = lambda: None) -> Task:
    """Repeat a step at the given ticks: in a daemon thread, which calls `prepare` first, or in lockstep when due."""
    return _current.repeat(ticks, step, name, prepare)


def run(ticks: Ticks, step: Step) -> None:
    """Repeat a step at the given ticks, and return after the last one."""
    _current.run(ticks, step)


def receive(published: float, topic: str, reader: int, deliver: Callable[[float], None]) -> None:
    """Deliver a message, published at a time, s, by the sender's clock, now or at its time; `deliver` gets the time.
    `reader`: identity of the subscription."""
    _current.receive(published, topic, reader, deliver)


readers: dict[int, str] = {}
"""Topic of each subscription of this process, by its identity."""


def listen(topic: str, reader: int, listens: bool) -> None:
    """Take note of a subscription, or of its end."""
    if listens:
        readers[reader] = topic
    else:
        readers.pop(reader, None)


def published(topic: str) -> float | None:
    """Take note of a message that is published now, and return its time, s; None for the machine's own stamp."""
    return _current.published(topic)


def add(source: Any) -> None:
    """Take note of a source of messages, `real.lockstep.Source`."""
    _current.add(source)


def join() -> None:
    """Take part in lockstep with this thread from now on: time goes on only when it has done what is due."""
    _current.join()


def leave() -> None:
    """Take part no longer with this thread, until `join`."""
    _current.leave()
