"""State part of a driver: the newest state of a robot's joints, and what it cannot be."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from real import clock
from real.bus import Node, Subscription
from real.control.timing import prefer_realtime_bus
from robot_rl.interface.robot import RobotSpec
from robot_rl.util.errors import UserError

SLACK = 0.1
"""Allowance for encoder noise in the check for jumps, rad."""
LATENESS = 0.02
"""Maximum delay of a joint state relative to the next one, s."""
OVERSPEED = 1.2
"""Maximum ratio of the speed that two joint states imply to the joint's speed limit."""
MANY, WITHIN = 3, 1.0
"""`MANY` refused joint states within `WITHIN` seconds are a fault."""


class NotReady(UserError):  # noqa: N818
    """The robot is not ready for control: a state, picture, subscriber or person is missing, or a topic is shared."""


@dataclass(frozen=True)
class JointReading:
    """One state of all joints, in the spec's order."""

    position: np.ndarray
    """Joint positions, (J,) rad."""
    velocity: np.ndarray
    """Joint velocities, (J,) rad/s."""
    gripper: float
    """Finger distance, m."""
    received: float
    """Arrival, s, by `real.clock`, less its delay if a stamp tells it."""

    @property
    def upright(self) -> float:
        """Return the cosine of the trunk's tilt; 1 for a fixed robot."""
        return 1.0


class JumpCheck:
    """Refuse joint states that the robot cannot have reached. They come from another robot or a broken encoder."""

    def __init__(self, robot: RobotSpec):
        self.speed = OVERSPEED * np.array([joint.velocity for joint in robot.joints])
        """Largest plausible speed of each joint, (J,) rad/s."""
        self.count = 0
        """Number of refused states."""
        self._times: deque[float] = deque(maxlen=MANY)

    def refuses(self, moved: np.ndarray, since: np.ndarray | float, now: float, joints: np.ndarray | slice) -> bool:
        """Return whether joints cannot have moved by `moved`, rad, in the `since` seconds after their last accepted
        state. The longer this time, the more motion is accepted, so a robot moved by hand is accepted again."""
        moved = np.abs(moved)
        # The first comparison is for speed: nearly every state passes it.
        if moved.max(initial=0) <= SLACK or not (moved > SLACK + self.speed[joints] * (since + LATENESS)).any():
            return False
        self.count += 1
        self._times.append(now)
        return True

    def many(self, now: float) -> bool:
        """Return whether `MANY` states were refused within the last `WITHIN` seconds."""
        return len(self._times) == MANY and now - self._times[0] <= WITHIN

    def forget(self) -> None:
        """Forget refused states, after the robot was placed elsewhere."""
        self._times.clear()


class StateReader(ABC):
    """Subscriber of a robot's state. A driver's own reader subscribes in `__init__`, after this class's."""

    joints: Subscription
    """Subscription of the joints' state."""
    publishers = 1
    """Number of publishers that together report the joints."""

    def __init__(self, node: Node, robot: RobotSpec, realtime: bool = True):
        """Args: `realtime`: give the bus's threads real-time priority at the first state."""
        self.node, self.robot = node, robot
        self.rejected = 0
        """Number of malformed or non-finite joint states."""
        self.repeated = 0
        """Number of joint states that were ignored because they repeat the previous stamp."""
        self.jumps = JumpCheck(robot)
        self._raised = not realtime

    @abstractmethod
    def reading(self) -> JointReading | None:
        """Return the latest complete state of the joints, None before the first."""

    @abstractmethod
    def views(self, reading: JointReading) -> dict[str, Tensor]:
        """Return the views (n = 1) of `RobotState` besides joints, gripper and objects."""

    @abstractmethod
    def missing(self) -> list[str]:
        """Return descriptions of the missing parts of the state."""

    def settle(self) -> None:  # noqa: B027 - optional
        """Take note that the robot is ready: publishers of joints that appear later are foreign."""

    def next_reading(self, timeout: float) -> JointReading | None:
        """Wait up to `timeout` s for a joint state that is newer than this call; return the latest. After a suspension
        of this process, the last state is old although the robot still sends."""
        began = clock.now()
        self.wait(lambda: (reading := self.reading()) is not None and reading.received >= began, timeout)
        return self.reading()

    def wait(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait up to `timeout` s for new states until `holds()` is true; return its value."""
        start, began = clock.now(), time.monotonic()
        while not (held := holds()):
            # Before this process takes part in lockstep, the robot's clock stands.
            passed = clock.now() - start or time.monotonic() - began
            if passed >= timeout:
                break
            self.joints.wait(min(0.1, timeout - passed))
        return held

    def raise_priority_once(self) -> None:
        """Give the bus's threads real-time priority. Call this from the callback of the joints' state."""
        if not self._raised:
            self._raised = True
            prefer_realtime_bus()
