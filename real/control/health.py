"""Temperature of a robot's motors and charge of its battery, judged by the guard."""

import numpy as np

from real.drivers.lowlevel import Motors
from robot_rl.interface.driver import UnitreeLowLevel

PERIOD = 0.02
"""Interval between looks at the states, s: temperatures and charge change slowly."""
HOT_FOR, LOW_FOR = 0.1, 2.0
"""Time for which a motor must be too hot, or the battery too low, before it counts, s."""
GAP = 0.1
"""Gap between states after which both times begin anew, s."""


class Health:
    """Judge states of the robot. What it does not report (0 degrees C; no voltage of any cell) is never judged.

    A limit that was reached holds until the value is back on the good side of the warning.
    """

    def __init__(self, motors: Motors, config: UnitreeLowLevel):
        self.config, self._count, self._names = config, motors.count, config.motors
        self.hot = ""
        """Reason to damp: a motor is too hot; empty otherwise."""
        self.low = ""
        """Reason to lie down: the battery is low; empty otherwise."""
        self.warning = ""
        """What is not good yet not bad enough to stop; empty otherwise."""
        self.values: dict[str, str] = {}
        """Readings by name, for viewers."""
        self._looked = self._cool = self._charged = -float("inf")
        """Time of the last look, and of the last one at which motors and battery were good enough, s."""

    def look(self, state: np.ndarray, now: float) -> None:
        """Judge a LowState that arrived at `now`, s, if one is due."""
        if now - self._looked < PERIOD:
            return
        if now - self._looked > GAP:  # silence proves nothing
            self._cool = self._charged = now
        self._looked = now
        warnings = [self._motors(state, now), self._battery(state["bms_state"], now)]
        self.warning = "" if self.hot or self.low else "; ".join(filter(None, warnings))

    def _motors(self, state: np.ndarray, now: float) -> str:
        degrees = state["motor_state"]["temperature"][: self._count]
        hottest = int(degrees.argmax())
        highest, config = int(degrees[hottest]), self.config
        text = f"motor of {self._names[hottest]} at {highest} degrees C"
        self.values["hottest motor"] = text
        warm = highest >= config.motor_temperature_warning
        if highest < config.motor_temperature_stop:
            self._cool = now
            self.hot = self.hot if warm else ""
        elif now - self._cool >= HOT_FOR and not self.hot:
            self.hot = text
        return text if warm else ""

    def _battery(self, battery: np.ndarray, now: float) -> str:
        if not battery["cell_vol"].any():
            self._charged, self.low = now, ""
            self.values["battery"] = "not reported"
            return ""
        charge, config = int(battery["soc"]), self.config
        text = f"battery at {charge} %"
        self.values["battery"] = text
        little = charge <= config.battery_warning
        if charge > config.battery_low:
            self._charged = now
            self.low = self.low if little else ""
        elif now - self._charged >= LOW_FOR and not self.low:
            self.low = text
        return text if little else ""
