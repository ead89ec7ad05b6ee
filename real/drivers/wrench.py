"""External force and torque at an arm's tool, as its driver reports them: too much, or silence, stops the arm."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from real.bus import Node, Stamped, qos
from real.drivers.state import NotReady, StateReader
from robot_rl.interface.driver import Ros2Control

WRENCH = "geometry_msgs/msg/WrenchStamped"
IN_A_ROW = 3
"""Number of messages above a limit that stops the arm: a single one may be noise."""
KEPT = 0.1
"""Time for which a message above a limit counts, s, so that no tick of the command loop misses it."""
SILENCE = 0.2
"""Age of the newest message at which the topic counts as silent, s: six periods at 30 Hz."""
STILL, LEAST = 0.5, 10
"""Shortest time, s, and number of messages of which the mean is taken as zero."""
REST = 0.02
"""Largest joint speed of an arm that stands still, rad/s."""


class Wrench:
    """Reader of the topic `wrench` of a driver's config. Its zero is the mean before the first command, since sensors
    have an offset; what the arm grips later counts as external force."""

    def __init__(self, node: Node, config: Ros2Control, state: StateReader):
        self._state = state
        self._limits = (("force", "N", config.force_limit), ("torque", "N m", config.torque_limit))
        self._zero: np.ndarray | None = None
        """(6,) force, N, and torque, N m, without contact; None before it is known."""
        self._still: list[tuple[float, np.ndarray]] = []
        """Arrivals, s, and values (6,) since the arm has stood still."""
        self._stamp, self._received, self._over = (0, 0), -math.inf, 0
        self._fault, self._until = "", -math.inf
        """Exceeded limit, and the time, s, until which it counts."""
        self.subscriptions = [node.subscribe(WRENCH, config.wrench, qos.SENSOR, self._take)]

    def fault(self, now: float) -> str:
        """Return which limit is exceeded, or that the topic is silent; empty if neither."""
        if now < self._until:
            return self._fault
        silent = self._zero is not None and now - self._received > SILENCE
        return f"no force arrives on {self.subscriptions[0].topic}: is its broadcaster active?" if silent else ""

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` s until the arm has stood still, and take the mean as zero; raise NotReady if nothing
        arrives, if the arm moves, or if the mean is above a limit by itself."""
        self._zero = None
        self._still.clear()
        end = time.monotonic() + timeout
        while not (enough := self._enough()) and (left := end - time.monotonic()) > 0:
            self.subscriptions[0].wait(min(0.1, left))
        if not enough:
            heard = self._received > -math.inf
            why = "the arm moves, or too few forces arrive" if heard else "no force arrives"
            raise NotReady(
                f"{why} on {self.subscriptions[0].topic}, whose zero is taken while the arm stands still: is it at "
                "rest, and is the topic's broadcaster active?"
            )
        zero = np.mean([values for _, values in list(self._still)], axis=0)
        if exceeded := self._exceeded(zero):
            raise NotReady(
                f"{exceeded} while the arm stands still: free the tool, set its payload, or zero the sensor "
                "(UR: service io_and_status_controller/zero_ftsensor)"
            )
        self._zero, self._over = zero, 0

    def _enough(self) -> bool:
        still = list(self._still)
        return len(still) >= LEAST and still[-1][0] - still[0][0] >= STILL

    def _take(self, sample: Stamped) -> None:
        stamp, wrench = sample.msg.header.stamp, sample.msg.wrench
        stamped = (stamp.sec, stamp.nanosec)
        if any(stamped) and stamped == self._stamp:  # a publisher that hangs repeats its last message
            return
        self._stamp, self._received = stamped, sample.received
        parts: Any = (wrench.force, wrench.torque)
        values = np.array([number for part in parts for number in (part.x, part.y, part.z)])
        if self._zero is None:
            self._collect(sample.received, values)
            return
        exceeded = self._exceeded(values - self._zero)
        self._over = self._over + 1 if exceeded else 0
        if self._over >= IN_A_ROW:
            self._fault, self._until = exceeded, sample.received + KEPT

    def _collect(self, received: float, values: np.ndarray) -> None:
        reading = self._state.reading()
        if reading is None or not np.abs(reading.velocity).max() < REST:
            self._still.clear()
        else:
            self._still.append((received, values))

    def _exceeded(self, values: np.ndarray) -> str:
        """Return the limit that values (6,) exceed, and by what; a value that is not finite exceeds it too."""
        for (name, unit, limit), part in zip(self._limits, (values[:3], values[3:]), strict=True):
            if not (size := float(np.linalg.norm(part))) <= limit:
                return f"external {name} of {size:.3g} {unit} at the tool, above {name}_limit, {limit:g} {unit}"
        return ""
