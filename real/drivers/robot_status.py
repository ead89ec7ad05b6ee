"""What an arm's driver reports about whether the robot obeys: its program, its safety mode, its speed scaling."""

from __future__ import annotations

import time
from typing import Any

from real.bus import Node, Stamped, Subscription, message, qos
from real.drivers.state import NotReady
from real.topics import BOOL, NUMBER
from robot_rl.interface.driver import Ros2Control

SAFETY = "ur_dashboard_msgs/msg/SafetyMode"
FULL = 100.0
"""Speed scaling of a robot at full speed, percent."""
STEP = 5.0
"""Change of the speed scaling that is reported again, percent."""


class RobotStatus:
    """Reports of a robot's driver, on those topics that its config names."""

    def __init__(self, node: Node, config: Ros2Control):
        self._node = node
        kind: Any = message(SAFETY)
        self._modes = {value: name for name, value in vars(kind).items() if name.isupper()}
        self._faults = dict.fromkeys(("program", "safety", "speed"), "")
        """Why the robot does not obey, by what says so; empty texts while it obeys."""
        self._scaling, self._reported = FULL, FULL
        """Newest speed scaling, and that of the last report, percent."""
        self.subscriptions: list[Subscription] = []
        """Subscriptions of the topics, each of which only one robot may publish."""
        for topic, kind, profile, handler in (
            (config.robot_program, BOOL, qos.LATCHED, self._on_program),
            (config.safety_mode, SAFETY, qos.LATCHED, self._on_safety),
            (config.speed_scaling, NUMBER, qos.SENSOR, self._on_scaling),
        ):
            if topic:
                self.subscriptions.append(node.subscribe(kind, topic, profile, handler))

    @property
    def fault(self) -> str:
        """Return why the robot does not obey; empty if it does."""
        return next(filter(None, self._faults.values()), "")

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` s for all reports; raise NotReady if one is missing or says that the robot does not
        obey."""
        end = time.monotonic() + timeout
        for subscription in self.subscriptions:
            if not subscription.wait(max(0.0, end - time.monotonic()), after=0):
                name = subscription.topic.rpartition("/")[0].rpartition("/")[2]
                raise NotReady(
                    f"nothing arrives on {subscription.topic}: is controller {name!r} active, and has the robot's "
                    "program been started? Before it runs for the first time, the driver does not speak of it"
                )
        self.report()
        if self.fault:
            raise NotReady(self.fault)

    def report(self) -> None:
        """Log a speed scaling below 100 %, and changes of it."""
        scaling = self._scaling
        if abs(scaling - self._reported) >= STEP or (scaling == FULL) != (self._reported == FULL):
            self._reported = scaling
            slow = scaling < FULL
            text = f"the robot's speed is scaled to {scaling:.0f} %"
            self._node.log("warn" if slow else "info", f"{text}: the slider, or a limit" if slow else text)

    def _on_program(self, sample: Stamped) -> None:
        stopped = "the robot's program does not run: start External Control on the pendant, or resend_robot_program"
        self._faults["program"] = "" if sample.msg.data else stopped

    def _on_safety(self, sample: Stamped) -> None:
        mode = self._modes.get(int(sample.msg.mode), str(sample.msg.mode))
        self._faults["safety"] = "" if mode == "NORMAL" else f"the robot's safety mode is {mode}; clear it at the robot"

    def _on_scaling(self, sample: Stamped) -> None:
        self._scaling = min(FULL, float(sample.msg.data))
        paused = "the robot's speed is scaled to 0 %: it is paused, or stopped by its safety system"
        self._faults["speed"] = "" if self._scaling > 0 else paused
