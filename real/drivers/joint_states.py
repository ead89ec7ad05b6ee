"""State reader of an arm: sensor_msgs/JointState, whose joints are matched by name."""

import threading

import numpy as np
import torch
from torch import Tensor

from real.bus import Node, Stamped, qos
from real.bus.stamps import Delay, seconds
from real.drivers.names import driver_names, suggestion
from real.drivers.state import JointReading, StateReader
from robot_rl.interface.driver import JointTopics
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec

SLIP = 0.05
"""Maximum difference between the time from one message to a later one by the driver's clock and by ours, s. A larger
difference means that the driver's clock was set."""


class VelocityEstimate:
    """Velocity of each joint: reported by the driver, else from its motion since an earlier message, else NaN."""

    def __init__(self, count: int, shortest: float):
        """Args: `shortest`: minimum time between two compared positions, s, by which their noise is divided."""
        self.shortest = shortest
        self._newest, self._velocity = np.full(count, np.nan), np.full(count, np.nan)
        self._position, self._stamp, self._received = (np.full(count, np.nan) for _ in range(3))
        """Position, stamp and arrival of each joint with which its next position is compared."""

    def repeats(self, joints: np.ndarray, stamp: float) -> bool:
        """Return whether a message's `stamp`, s, equals the stamp of the last message of these joints."""
        return stamp > 0 and bool((self._newest[joints] == stamp).all())

    def __call__(
        self, joints: np.ndarray, position: np.ndarray, reported: np.ndarray, stamp: float, received: float
    ) -> np.ndarray:
        """Return the velocities (K,), rad/s, of the joints with the indices `joints` (K,); NaN where unknown.

        Args: `position`: (K,) rad. `reported`: the driver's velocities (K,), rad/s, or NaN. `stamp`: the message's time
        by the driver's clock, s; 0: not set. `received`: the message's arrival by our clock, s.
        """
        if np.isfinite(reported).all():  # nothing to estimate: only remember
            self._velocity[joints], self._position[joints] = reported, position
            self._stamp[joints], self._received[joints] = stamp or received, received
            self._newest[joints] = stamp
            return reported
        since, arrived = (stamp or received) - self._stamp[joints], received - self._received[joints]
        known = (since > 0) & (np.abs(since - arrived) <= SLIP)
        compared = ~known | (since >= self.shortest)
        with np.errstate(divide="ignore", invalid="ignore"):
            velocity = np.where(known, (position - self._position[joints]) / since, np.nan)
        self._newest[joints] = stamp
        taken = joints[compared]
        self._velocity[taken], self._position[taken] = velocity[compared], position[compared]
        self._stamp[taken], self._received[taken] = stamp or received, received
        return np.where(np.isfinite(reported), reported, self._velocity[joints])


class JointStates(StateReader):
    """Reader of joint states. Joints are matched by name; a message may hold more joints, or only some of them."""

    def __init__(self, node: Node, robot: RobotSpec, realtime: bool = True):
        super().__init__(node, robot, realtime)
        self.kinematics = Kinematics(robot) if robot.tool else None
        self._index = {name: k for k, name in enumerate(driver_names(node, robot))}
        self._position, self._velocity = (np.full(len(self._index), np.nan) for _ in range(2))
        self._stamp = np.full(len(self._index), -np.inf)
        """Time of each joint's last complete state, s: its arrival less the delay that its stamp tells."""
        self._delay = Delay()
        self._estimate = VelocityEstimate(len(self._index), 0.5 / robot.state_rate)
        self._named: list[set[str]] = []
        """Joint names in the messages of each publisher; a second publisher of the same joints is refused."""
        self._settled = False
        """After `settle`, all publishers of the joints are known."""
        none = np.zeros(0, int)
        self._order: tuple[list[str], np.ndarray, np.ndarray, np.ndarray] = [], none, none, none
        """Names in the last message; of the spec's joints in it: indices in the message and in the spec, and where in
        these the arm's are, without fingers."""
        self._lock = threading.Lock()
        assert isinstance(robot.driver, JointTopics)
        topic = robot.driver.joint_states
        self.joints = node.subscribe("sensor_msgs/msg/JointState", topic, qos.SENSOR, self._on_joints)

    def _on_joints(self, sample: Stamped) -> None:
        self.raise_priority_once()
        msg = sample.msg
        position = np.asarray(msg.position)
        if len(msg.name) != len(position):
            self.rejected += 1
            return
        if msg.name != self._order[0]:
            self._remember(list(msg.name))
        _, places, joints, arm = self._order
        position, given = position[places], np.asarray(msg.velocity)
        if not np.isfinite(position).all():
            self.rejected += 1
            return
        if len(given) == len(msg.name):
            reported = given[places]
        else:
            reported = np.full(len(places), np.nan)
            has_velocity = places < len(given)
            reported[has_velocity] = given[places[has_velocity]]
        stamp = seconds(msg.header.stamp)
        with self._lock:
            if len(joints) and self._estimate.repeats(joints, stamp):
                self.repeated += 1
                return
            measured = sample.received - self._delay(stamp, sample.received)
            own = joints[arm]  # fingers may exceed their limits; their velocity is not used
            moved, since = position[arm] - self._position[own], measured - self._stamp[own]
            if self.jumps.refuses(moved, since, sample.received, own):
                return
            velocity = self._estimate(joints, position, reported, stamp, sample.received)
            if velocity is not reported:
                known = np.isfinite(velocity)
                known[joints >= len(self.robot.joints)] = True
                joints, position, velocity = joints[known], position[known], velocity[known]
            self._position[joints], self._velocity[joints] = position, velocity
            self._stamp[joints] = measured

    def _remember(self, names: list[str]) -> None:
        """Cache the indices of the spec's joints in messages with these joint names."""
        places = [k for k, name in enumerate(names) if name in self._index]
        joints = np.array([self._index[names[k]] for k in places], int)
        arm = np.flatnonzero(joints < len(self.robot.joints))
        self._order = names, np.array(places, int), joints, arm
        with self._lock:
            if not self._settled and all(part.isdisjoint(names) for part in self._named):
                self._named.append(set(names))

    def settle(self) -> None:
        self._settled = True

    def reading(self) -> JointReading | None:
        """Return the latest complete state, None before the first. Its time is that of the oldest joint."""
        with self._lock:
            oldest = float(self._stamp.min())
            if oldest == -np.inf:
                return None
            arm = len(self.robot.joints)
            return JointReading(
                self._position[:arm].copy(), self._velocity[:arm].copy(), float(self._position[arm:].sum()), oldest
            )

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
        names = self._order[0]
        if set(unseen) <= set(names):
            why = f"{self.repeated} repeated a stamp, {self.rejected} were not finite"
            return [f"position and velocity of {', '.join(unseen)} on {self.joints.topic} ({why})"]
        heard_of = "; ".join(filter(None, (", ".join(names[:20]), suggestion(self.robot, names))))
        received = f" (heard of {heard_of})" if names else ""
        return [f"state of {', '.join(unseen)} on {self.joints.topic}{received}"]
