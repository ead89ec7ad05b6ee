"""Quality of service: four common profiles, and others."""

from __future__ import annotations

from dataclasses import dataclass

from real.bus.errors import BusError


@dataclass(frozen=True)
class QoS:
    """Quality of service that a publisher offers or a subscription requests; a request may not exceed the offer."""

    depth: int = 10
    """Samples kept (keep-last)."""
    reliable: bool = True
    """Resend lost samples; False is ROS's best effort."""
    transient_local: bool = False
    """Send the last ``depth`` samples to late joiners."""
    lifespan: float | None = None
    """Seconds after which a sample is dropped; None keeps it."""
    blocking: float = 0.1
    """Longest time, s, that ``publish`` waits for a slow reliable reader. ROS waits forever; a dead reader must not
    stall a control loop."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise BusError(f"QoS.depth is {self.depth}; give at least 1")
        if not 0.0 <= self.blocking <= 10.0:
            raise BusError(f"QoS.blocking is {self.blocking} s; give 0 to 10 s (a control loop wants <= 0.1)")


DEFAULT = QoS()
SENSOR = QoS(depth=5, reliable=False)
COMMAND = QoS(depth=1, blocking=0.05)
LATCHED = QoS(depth=1, transient_local=True)
ROSOUT = QoS(depth=1000, transient_local=True, lifespan=10.0, blocking=0.0)  # a log line never waits
