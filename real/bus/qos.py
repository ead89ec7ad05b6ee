"""Quality-of-service profiles."""

from dataclasses import dataclass

from real.bus.names import BusError


@dataclass(frozen=True)
class QoS:
    """Quality of service offered by a publisher or requested by a subscription. A request must not exceed the offer."""

    depth: int = 10
    """Number of samples kept (keep-last)."""
    reliable: bool = True
    """Lost samples are sent again; False: best effort."""
    transient_local: bool = False
    """Send the last ``depth`` samples to late joiners."""
    lifespan: float | None = None
    """Time after which a sample is dropped, s; None: never."""
    blocking: float = 0.1
    """Longest wait of ``publish`` for a slow reliable reader, s. Unlike in ROS it is finite, so that a dead reader does
    not stall a control loop."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise BusError(f"QoS.depth is {self.depth}; give at least 1")
        if not 0.0 <= self.blocking <= 10.0:
            raise BusError(f"QoS.blocking is {self.blocking} s; give 0 to 10 s (a control loop wants <= 0.1)")


DEFAULT = QoS()
SENSOR = QoS(depth=5, reliable=False)
COMMAND = QoS(depth=1, blocking=0.05)
LATCHED = QoS(depth=1, transient_local=True)
VIEWER = QoS(blocking=0.0)
"""For those who watch a robot: it never waits for them."""
PARAMETERS = QoS(depth=1000)
ROSOUT = QoS(depth=1000, transient_local=True, lifespan=10.0, blocking=0.0)
