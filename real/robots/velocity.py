"""Joint velocities where a driver reports none: from positions and stamps."""

from __future__ import annotations

import numpy as np

SLIP = 0.05
"""Largest difference between the driver's clock and ours in the time between two messages, s; beyond, its clock was set
or a message was held up."""


class VelocityEstimate:
    """The velocity of each joint: as reported, else its motion since an earlier message.

    Without either it is unknown, which is NaN and not 0: at the first message, and when the driver's clock jumps.
    """

    def __init__(self, count: int, shortest: float):
        """Args: `shortest`: time between two positions to compare, s; noise is divided by it."""
        self.shortest = shortest
        self._newest, self._velocity = np.full(count, np.nan), np.full(count, np.nan)
        self._position, self._stamp, self._received = (np.full(count, np.nan) for _ in range(3))
        """The state to compare the next one with."""

    def repeats(self, joints: np.ndarray, stamp: float) -> bool:
        """Return whether a message of these joints has the stamp, s, of their last one: a driver that hangs."""
        return stamp > 0 and bool((self._newest[joints] == stamp).all())

    def __call__(
        self, joints: np.ndarray, position: np.ndarray, reported: np.ndarray, stamp: float, received: float
    ) -> np.ndarray:
        """Return the velocities (K,), rad/s, of some joints (K,) at their positions, rad; NaN where unknown.

        Args: `reported`: the driver's own, rad/s, NaN where it has none. `stamp`: by the driver's clock, s; 0 if it is
        not set. `received`: by ours, s.
        """
        since, arrived = (stamp or received) - self._stamp[joints], received - self._received[joints]
        known = (since > 0) & (np.abs(since - arrived) <= SLIP)
        compared = ~known | (since >= self.shortest)
        with np.errstate(divide="ignore", invalid="ignore"):
            velocity = np.where(known, (position - self._position[joints]) / since, np.nan)
        self._newest[joints] = stamp
        taken = joints[compared]
        self._velocity[taken], self._position[taken] = velocity[compared], position[compared]
        self._stamp[taken], self._received[taken] = stamp or received, received
        return np.where(np.isfinite(reported), reported, self._velocity[joints])
