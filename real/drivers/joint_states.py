"""State reader of an arm: sensor_msgs/JointState, whose joints are matched by name."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Stamped, qos
from real.bus.layout import Layout
from real.bus.stamps import Delay
from real.drivers.names import driver_names, suggestion
from real.drivers.state import JointReading, StateReader
from robot_rl.interface.driver import JointTopics
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec

TYPE = "sensor_msgs/msg/JointState"
PARTS = 8
"""Number of kinds of messages, by their names, that are remembered."""
SLIP = 0.05
"""Maximum difference between the time from one message to a later one by the driver's clock and by ours, s. A larger
difference means that the driver's clock was set."""


class VelocityEstimate:
    """Velocity of each joint: reported by the driver, else from its motion since an earlier message, else NaN."""

    def __init__(self, count: int, shortest: float):
        """Args: `shortest`: minimum time between two compared positions, s, by which their noise is divided."""
        self.shortest = shortest
        self._velocity, self._position, self._stamp, self._received = (np.full(count, np.nan) for _ in range(4))
        """Velocity, and position, stamp and arrival with which the next position is compared, of each joint."""
        self._reported: tuple[Any, ...] = ()
        """Last message with all velocities: joints, velocities, positions, stamp and arrival."""

    def __call__(
        self, joints: np.ndarray | slice, position: np.ndarray, reported: np.ndarray, stamp: float, received: float
    ) -> np.ndarray:
        """Return the velocities (K,), rad/s, of the joints with the indices `joints` (K,); NaN where unknown.

        Args: `position`: (K,) rad. `reported`: the driver's velocities (K,), rad/s, or NaN. `stamp`: the message's time
        by the driver's clock, s; 0: not set. `received`: the message's arrival by our clock, s.
        """
        complete = math.isfinite(reported.sum())
        if self._reported and not (complete and self._reported[0] is joints):
            last, velocity, place, stamped, arrived = self._reported
            self._velocity[last], self._position[last] = velocity, place
            self._stamp[last], self._received[last] = stamped, arrived
            self._reported = ()
        if complete:  # nothing to estimate; it is compared only if a later message lacks velocities
            self._reported = joints, reported, position, stamp or received, received
            return reported
        since, arrived = (stamp or received) - self._stamp[joints], received - self._received[joints]
        known = (since > 0) & (np.abs(since - arrived) <= SLIP)
        compared = ~known | (since >= self.shortest)
        with np.errstate(divide="ignore", invalid="ignore"):
            velocity = np.where(known, (position - self._position[joints]) / since, np.nan)
        taken = np.arange(len(self._velocity))[joints][compared]
        self._velocity[taken], self._position[taken] = velocity[compared], position[compared]
        self._stamp[taken], self._received[taken] = stamp or received, received
        return np.where(np.isfinite(reported), reported, self._velocity[joints])


def span(indices: np.ndarray) -> slice | np.ndarray:
    """Return a slice in place of ascending indices without gaps: it takes a tenth of the time."""
    if len(indices) and (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


class Part:
    """Kind of message: joint names, and where the spec's joints are in it."""

    def __init__(self, message: Any, layout: Layout, index: dict[str, int], arm: int):
        """Args: `index`: indices of the spec's joints, fingers last, by name. `arm`: number of joints less fingers."""
        self.layout = layout
        self.names, self.count, self.speeds = list(message.name), len(message.name), len(message.velocity)
        """Names, their number, and the number of velocities."""
        places = np.array([k for k, name in enumerate(self.names) if name in index], int)
        joints = np.array([index[self.names[k]] for k in places], int)
        own = np.flatnonzero(joints < arm)
        self.places, self.joints = span(places), span(joints)
        """Indices of the spec's joints: in the message, and in the spec."""
        self.arm, self.own = span(own), span(joints[own])
        """Indices of the arm's joints, without fingers: in `places`, and in the spec."""
        self.whole = joints.tolist() == list(range(len(index)))
        """Whether the message has all joints, in the spec's order."""

    def some(self, numbers: Any) -> np.ndarray:
        """Return the velocities of the spec's joints in a message that has fewer velocities than names; NaN: none."""
        velocity = np.full(self.count, np.nan)
        velocity[: self.speeds] = numbers["velocity"][: self.count]
        return velocity[self.places]


class JointStates(StateReader):
    """Reader of joint states. Joints are matched by name; a message may hold more joints, or only some of them."""

    def __init__(self, node: Node, robot: RobotSpec, realtime: bool = True):
        super().__init__(node, robot, realtime)
        self.kinematics = Kinematics(robot) if robot.tool else None
        self._index = {name: k for k, name in enumerate(driver_names(node, robot))}
        self._position, self._velocity = (np.full(len(self._index), np.nan) for _ in range(2))
        self._stamp = np.full(len(self._index), -np.inf)
        """Time of each joint's last complete state, s: its arrival less the delay that its stamp tells."""
        self._newest = np.zeros(len(self._index))
        """Stamp of each joint's last message, s; 0: not set."""
        self._delay = Delay()
        assert isinstance(robot.driver, JointTopics)
        self._estimate = VelocityEstimate(len(self._index), 0.5 / (robot.driver.state_rate or robot.state_rate))
        self._named: list[set[str]] = []
        """Joint names in the messages of each publisher; a second publisher of the same joints is refused."""
        self._settled = False
        """After `settle`, all publishers of the joints are known."""
        self._parts: deque[Part] = deque(maxlen=PARTS)
        """Kinds of messages seen so far, the newest first."""
        self._reading: JointReading | None = None
        self._lock = threading.Lock()
        topic = robot.driver.joint_states
        self.joints = node.subscribe(TYPE, topic, qos.SENSOR, self._on_joints)

    def _on_joints(self, sample: Stamped) -> None:
        self.raise_priority_once()
        found = self._numbers(sample)
        if found is None:
            self.rejected += 1
            return
        part, numbers = found
        places, joints = part.places, part.joints
        position = numbers["position"][places].astype(float)
        if not len(position):  # of other joints
            return
        reported = numbers["velocity"][places].astype(float) if part.speeds == part.count else part.some(numbers)
        if not math.isfinite(position.sum()):  # the sum is not finite if one of them is not
            self.rejected += 1
            return
        stamp = int(numbers["header.stamp.sec"]) + 1e-9 * int(numbers["header.stamp.nanosec"])
        with self._lock:
            if stamp > 0 and (self._newest[joints] == stamp).all():
                self.repeated += 1
                return
            self._newest[joints] = stamp
            measured = sample.received - self._delay(stamp, sample.received)
            own = part.own  # fingers may exceed their limits; their velocity is not used
            moved, since = position[part.arm] - self._position[own], measured - self._stamp[own]
            if self.jumps.refuses(moved, since, sample.received, own):
                return
            velocity = self._estimate(joints, position, reported, stamp, sample.received)
            if part.whole and velocity is reported:
                self._position, self._velocity, self._stamp[:] = position, velocity, measured
                self._read(measured)
                return
            known = np.isfinite(velocity)
            indices = np.arange(len(self._position))[joints]
            known[indices >= len(self.robot.joints)] = True
            joints = indices[known]
            self._position, self._velocity = self._position.copy(), self._velocity.copy()  # readings keep the old ones
            self._position[joints], self._velocity[joints] = position[known], velocity[known]
            self._stamp[joints] = measured
            self._read(float(self._stamp.min()))

    def _numbers(self, sample: Stamped) -> tuple[Part, Any] | None:
        """Return a message's numbers and what they belong to; None for different numbers of names and positions."""
        for part in self._parts:
            if (numbers := part.layout.read(sample.raw)) is not None:
                return part, numbers
        message = sample.msg
        if len(message.name) != len(message.position):
            return None
        part = Part(message, Layout(sample.raw, TYPE), self._index, len(self.robot.joints))
        with self._lock:
            self._parts.appendleft(part)
            if not self._settled and all(names.isdisjoint(part.names) for names in self._named):
                self._named.append(set(part.names))
        return part, part.layout.read(sample.raw)

    def _read(self, oldest: float) -> None:
        """Make a reading of the joints, once all are known; `oldest`: time of the oldest, s."""
        if oldest > -np.inf:
            arm = len(self.robot.joints)
            fingers = float(self._position[arm:].sum())
            self._reading = JointReading(self._position[:arm], self._velocity[:arm], fingers, oldest)

    def settle(self) -> None:
        self._settled = True

    def reading(self) -> JointReading | None:
        """Return the latest complete state, None before the first. Its time is that of the oldest joint."""
        return self._reading

    def views(self, reading: JointReading) -> dict[str, Tensor]:
        if self.kinematics is None:
            return {}
        joints = torch.from_numpy(reading.position).float()[None]
        return {"tool_position": self.kinematics.forward(joints)[0]}

    @property
    def publishers(self) -> int:  # type: ignore[override]
        """Return the number of publishers that together reported the joints at the start."""
        with self._lock:
            return max(1, len(self._named))

    def missing(self) -> list[str]:
        with self._lock:
            unseen = [name for name, k in self._index.items() if self._stamp[k] == -np.inf]
        if not unseen:
            return []
        names = self._parts[0].names if self._parts else []
        if set(unseen) <= set(names):
            why = f"{self.repeated} repeated a stamp, {self.rejected} were not finite"
            return [f"position and velocity of {', '.join(unseen)} on {self.joints.topic} ({why})"]
        heard_of = "; ".join(filter(None, (", ".join(names[:20]), suggestion(self.robot, names))))
        received = f" (heard of {heard_of})" if names else ""
        return [f"state of {', '.join(unseen)} on {self.joints.topic}{received}"]
