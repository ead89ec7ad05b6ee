"""Reset of a latched stop by the operator: refused until robot and input have rested for a while."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from real import clock
from real.drivers.state import JointReading
from real.teleop.commands import Operator

if TYPE_CHECKING:
    from real.episode.rig import Rig

logger = logging.getLogger(__name__)
REST = 0.5
"""Time for which robot and operator's input must have rested before a press of reset counts, s."""
SLOW = 0.1
"""Largest speed of a joint of a robot at rest, rad/s; what is measured has noise."""


class Release:
    """Judge of the operator's presses of reset while a stop is latched. A refused press is forgotten: each needs
    another one."""

    def __init__(self, rig: Rig):
        self._rig = rig
        self._restless = clock.now(), "robot and input were not watched before"
        """Last time at which robot or input did not rest, s, and why."""

    def __call__(self, operator: Operator | None) -> bool:
        """Return whether to reset the stop, given the operator's next reading. Call it once per control period."""
        now = clock.now()
        if moves := self._moves(now, self._rig.driver.reading(), operator):
            self._restless = now, moves
        if operator is None or not operator.reset:
            return False
        since, why = self._restless
        if now - since >= REST:
            return True
        logger.warning("not reset: %s; press again once robot and input have rested for %g s", why, REST)
        self._rig.note("reset refused", why)
        return False

    def _moves(self, now: float, reading: JointReading | None, operator: Operator | None) -> str:
        """Return what does not rest; empty if robot and input do."""
        if pressed := self._rig.stop_topic.reason(now):
            return f"{pressed} (release the button: it must send false at 10 Hz or more)"
        if operator is None or operator.lost:
            return "the teleop device is silent"
        if operator.stop:
            return "stop is pressed"
        if operator.held:
            return "the enable button is held"
        if any(operator.motion) or any(operator.rotation):
            return "the operator's input is not neutral"
        if reading is None or now - reading.received > self._rig.loop.safety.state_timeout:
            return "the robot's state is old"
        speed = float(np.abs(reading.velocity).max(initial=0.0))
        return f"a joint moves at {speed:.2f} rad/s" if not math.isfinite(speed) or speed > SLOW else ""
