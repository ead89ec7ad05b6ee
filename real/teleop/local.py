"""Input of a device in the process that obeys it, for simulation: no topic in between."""

from __future__ import annotations

import time

from real.teleop.commands import Operator, OperatorInput
from real.teleop.stream import Device


class DeviceInput(OperatorInput):
    """Read a device once per `read`; presses, dead-band and release as over the topic."""

    def __init__(self, device: Device):
        super().__init__(None)
        self.device = device

    @property
    def devices(self) -> int:
        """Return 1: the device is open."""
        return 1

    def read(self, now: float | None = None) -> Operator | None:
        """Return the input; raise `Finished` when the operator quits, `UserError` when the device is lost."""
        now = time.monotonic() if now is None else now
        self.receive(self.device.read(), now)
        return super().read(now)

    def begin(self) -> None:
        """Begin an episode, for devices that keep the state of the gripper."""
        if begin := getattr(self.device, "begin", None):
            begin()

    def close(self) -> None:
        """Restore the device."""
        self.device.close()
