"""Which commands a Franka has lost, by the success rate that it reports."""

from collections import deque

WINDOW = 100
"""Number of last commands of which the robot reports the share that came in time."""


class LostCycles:
    """Model of the robot's record of the last commands since a motion began."""

    def __init__(self) -> None:
        self._in_time: deque[bool] = deque(maxlen=WINDOW)

    def add(self, cycles: int, rate: float) -> tuple[bool, int]:
        """Return whether the last command came too late, and the number of cycles since that had no command.

        Args: `cycles`: number of cycles from the last state to this one. `rate`: success rate in this state, of the
        candidates that which explains it best is taken. A robot that does not count reports 1.
        """
        missed = [False] * (cycles - 1)
        candidates = ([True] * cycles, [True, *missed], [False, *missed])
        kept = list(self._in_time)
        errors = []
        for flags in candidates:
            window = (kept + flags)[-WINDOW:]
            errors.append(abs(sum(window) / len(window) - rate))
        best = candidates[errors.index(min(errors))]
        self._in_time.extend(best)
        return not best[0], best[1:].count(False)
