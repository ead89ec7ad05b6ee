"""The clock of the robot side: everything in `real` takes its time from here."""

import time


def now() -> float:
    """Return the time, s, since an arbitrary start."""
    return time.monotonic()
