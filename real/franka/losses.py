"""Which commands a Franka has lost, by the success rate that it reports."""

from collections import deque
from itertools import islice

WINDOW = 100
"""Number of last commands of which the robot reports the share that came in time."""


class LostCycles:
    """Model of the robot's record of the last commands since a motion began."""

    def __init__(self) -> None:
        self._in_time: deque[bool] = deque(maxlen=WINDOW)
        self.in_row = self._row = 0
        """Number of cycles that were lost in a row: the largest, and `_row` the newest."""

    def add(self, cycles: int, rate: float) -> tuple[bool, int]:
        """Return whether the last command came too late, and the number of cycles since that had no command.

        Args: `cycles`: number of cycles from the last state to this one. `rate`: success rate in this state, of the
        candidates that which explains it best is taken. A robot that does not count reports 1.
        """
        gone = max(0, len(self._in_time) + cycles - WINDOW)
        size, kept = len(self._in_time) + cycles - gone, sum(self._in_time) - sum(islice(self._in_time, gone))
        all_, first, none = (abs((kept + count) / size - rate) for count in (cycles, 1, 0))
        late, missed = none < min(all_, first), 0 if all_ <= min(first, none) else cycles - 1
        self._record(not late, 1)
        self._record(not missed, cycles - 1)
        return late, missed

    def end(self, cycles: int) -> None:
        """Take note of cycles after the last state without a command, after which the robot has ended the motion."""
        self._record(False, cycles)

    def _record(self, in_time: bool, cycles: int) -> None:
        self._in_time.extend([in_time] * cycles)
        if cycles:
            self._row = 0 if in_time else self._row + cycles
            self.in_row = max(self.in_row, self._row)
