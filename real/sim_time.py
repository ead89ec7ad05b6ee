"""Time of a process in lockstep with a simulated robot (`real.lockstep`), or after `/clock`."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator

from real import clock
from real.bus.node import Node, Stamped
from real.bus.qos import LATCHED, QoS
from real.bus.stamps import seconds
from real.clock import WALL
from real.lockstep import SOON, ClockError, Lockstep
from real.tick_line import ADDRESS, ADDRESS_TOPIC, CLOCK, CLOCK_TOPIC, JOIN, LEFT, WAIT, Line, Sent, read
from robot_rl.util.errors import UserError

logger = logging.getLogger(__name__)
AHEAD = 10.0
"""Step of `/clock` that is no tick, s."""
FIRST = 10.0
"""Longest wait for the first time, and for the conductor's answer, s."""


class TimeSource:
    """The time of a process that follows the clock of a simulated robot. Create it in the process's first node."""

    def __init__(self, node: Node):
        self.clock = Lockstep()
        clock.use(self.clock)
        self.clock.heard = False
        self.node = node
        self._waited = threading.Event()
        """The conductor waits for this process."""
        self._line: Line | None = None
        """Connection to a conductor; without it, `/clock` has the time."""
        self._ended = False
        """The last connection has ended; what is left on `/clock` is older than what was said there."""
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
        if not WALL.wait(lambda: self.clock.heard, FIRST):
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
                if self._line is None and self._ended:
                    self._address.poll(0.2)
                    self._times.clear()
                elif self._line is None:
                    (self._address if self._address.matched else self._clock).poll(0.2)
                else:
                    self._times.extend(self._line.hear())
            except TimeoutError:
                self._address.poll(0.0)  # raises if the node is closed
            except OSError:
                self._line, self._ended = None, True
                if self.clock.joined:
                    self.clock.fail("the robot's simulator has ended")
            while self._times:
                if (text := self._times.popleft()) == JOIN:
                    self.clock.begin()
                    self._waited.set()
                elif text == WAIT:
                    self.clock.keep_waiting()
                else:
                    yield read(text)

    def _run(self) -> None:
        try:
            for now, sent in self._said():
                if self.clock.heard and now < self.clock.time - SOON:
                    raise ClockError(
                        f"the robot's clock jumped back from {self.clock.time:.3f} to {now:.3f} s: was its simulator "
                        "restarted? Start this again too"
                    )
                if self.clock.heard and self._line is None and now > self.clock.time + AHEAD:
                    raise ClockError(
                        f"the robot's clock jumped ahead from {self.clock.time:.3f} to {now:.3f} s: was its simulator "
                        "restarted, or did this process stand still? Start this again"
                    )
                self.clock.heard = True
                if self._line is not None:
                    self.clock.keep_waiting()
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
