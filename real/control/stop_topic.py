"""Topic `e_stop`, as ROS users know it: a pressed button stops the robot at once, and so does a button's silence."""

import math
from dataclasses import replace

from real.bus import Node, Stamped, qos
from real.control.loop import CommandLoop
from real.control.stop import E_STOP, E_STOP_LOST
from real.topics import BOOL, E_STOP_TOPIC


class StopTopic:
    """Subscriber to the topic: `true` latches a stop; `false` clears none, it only says that the button is there.

    Once a button has been heard, silence of `SafetyConfig.stop_heartbeat` counts as pressed. The command loop checks
    that in each tick, so it works while the policy hangs.
    """

    def __init__(self, node: Node, loop: CommandLoop):
        self._loop, self._pressed = loop, False
        self._heard = math.inf
        """Arrival of the newest message, s; infinite before the first."""
        loop.watchdog = self.reason
        # Reliable, so that a single `true` arrives; best effort for publishers that offer no more.
        self.subscriptions = [
            node.subscribe(BOOL, E_STOP_TOPIC, profile, self._take)
            for profile in (qos.COMMAND, replace(qos.COMMAND, reliable=False))
        ]

    def _take(self, sample: Stamped) -> None:
        before, pressed = self._pressed if math.isfinite(self._heard) else None, bool(sample.msg.data)
        self._pressed, self._heard = pressed, sample.received
        if pressed:
            self._loop.stop(E_STOP)
        if pressed != before:
            self._loop.note("e_stop", "pressed" if pressed else "released")

    def reason(self, now: float) -> str:
        """Return why the robot must be stopped now: the button is pressed, or silent; empty if it need not."""
        if self._pressed:
            return E_STOP
        return E_STOP_LOST if now - self._heard > self._loop.safety.stop_heartbeat else ""
