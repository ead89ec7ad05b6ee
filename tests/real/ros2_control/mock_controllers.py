"""Controllers as ros2_control and others document them, and the arm that they move: a joint is where it was put."""

import math
import time
from functools import cached_property
from typing import Any

import numpy as np

from real.bus import Node, qos
from robot_rl.interface.robot import RobotSpec

ARRAY, TRAJECTORY = "std_msgs/msg/Float64MultiArray", "trajectory_msgs/msg/JointTrajectory"
POSE, TWIST = "geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/TwistStamped"
SERVO_TIMEOUT = 0.1  # incoming_command_timeout of MoveIt Servo, s
PERIOD = 0.002  # of the controller manager's loop, s


class Arm:
    def __init__(self, robot: RobotSpec, prefix: str):
        self.names = [prefix + name for name in robot.joint_names]
        self.robot = robot
        self.q, self.v = np.array(robot.home), np.zeros(len(robot.joints))

    @cached_property
    def kinematics(self) -> Any:
        import torch  # takes a second, which only Cartesian controllers need

        from robot_rl.interface.kinematics import Kinematics

        torch.set_num_threads(1)
        return Kinematics(self.robot)

    def move_tool(self, twist: Any) -> None:
        """Move the tool by `twist`, 6 numbers, m and rad in the base frame."""
        self.q = self.q + np.linalg.pinv(self.jacobian()[2][0].numpy()) @ np.asarray(twist, float)

    def jacobian(self) -> Any:
        """Return the tool's position (1, 3), rotation (1, 3, 3) and Jacobian (1, 6, J)."""
        import torch

        return self.kinematics.jacobian(torch.from_numpy(self.q).float()[None])


class Controller:
    """Controller with a subscription, which it has while it is inactive too; then it ignores what arrives."""

    kind, topic = "", "commands"

    def __init__(self, node: Node, name: str, arm: Arm, state: str):
        self.arm, self.state = arm, state
        self.accepted = self.refused = self.ignored = 0
        self.why = ""
        """Reason of the last refusal."""
        self.latest: Any = None
        if self.kind:
            topic = self.topic if self.topic.startswith("/") else f"{name}/{self.topic}"
            self.heard = node.subscribe(self.kind, topic, qos.COMMAND, self._on_message)

    def _on_message(self, sample: Any) -> None:
        if self.state != "active":
            self.ignored += 1
        elif why := self.refuses(sample.msg):
            self.refused, self.why = self.refused + 1, why
        else:
            self.accepted += 1
            self.latest = sample.msg, time.monotonic()
            self.take(sample.msg)

    def set(self, state: str) -> None:
        self.state, self.latest, self.arm.v = state, None, np.zeros_like(self.arm.v)

    def refuses(self, message: Any) -> str:
        return ""

    def take(self, message: Any) -> None:
        pass

    def update(self) -> None:
        pass


class Forward(Controller):
    """forward_command_controller: the last command stays forever; wrong sizes and non-finite ones are dropped."""

    kind = ARRAY

    def refuses(self, message: Any) -> str:
        if len(message.data) != len(self.arm.q):
            return f"{len(message.data)} numbers for {len(self.arm.q)} joints"
        return "" if np.isfinite(message.data).all() else "not finite"


class Position(Forward):
    def take(self, message: Any) -> None:
        self.arm.q = np.array(message.data)


class Velocity(Forward):
    def update(self) -> None:
        if self.latest is not None:
            self.arm.v = np.array(self.latest[0].data)
            self.arm.q = self.arm.q + PERIOD * self.arm.v


class Trajectory(Controller):
    """joint_trajectory_controller with its default parameters: all joints, by name; no velocity at the end."""

    kind, topic = TRAJECTORY, "joint_trajectory"

    def refuses(self, message: Any) -> str:
        names, points = list(message.joint_names), message.points
        times = [p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in points]
        if sorted(names) != sorted(self.arm.names):
            return f"joints {names} are not the controller's"
        if not points:
            return "no points"
        if any(later <= earlier for earlier, later in zip(times, times[1:], strict=False)):
            return "times do not increase"
        if np.any(points[-1].velocities):
            return "a velocity at the end"
        if any(len(p.positions) != len(names) for p in points):
            return "a point has too few positions"
        return ""

    def take(self, message: Any) -> None:
        self.ahead = message.points[-1].time_from_start
        self._order = [list(message.joint_names).index(name) for name in self.arm.names]
        self._start = self.arm.q

    def update(self) -> None:
        if self.latest is not None:
            message, begun = self.latest
            lasts = self.ahead.sec + 1e-9 * self.ahead.nanosec
            part = min(1.0, (time.monotonic() - begun) / lasts) if lasts > 0 else 1.0
            self.arm.q = self._start + part * (message.points[-1].positions[self._order] - self._start)


class Impedance(Controller):
    """CRISP's Cartesian controller: pulls the tool to the last pose forever."""

    kind, topic = POSE, "/target_pose"
    updated = 0.0

    def update(self) -> None:
        if self.latest is None:
            return
        import torch

        from robot_rl.interface.rotation import quat_to_matrix, rotation_error

        pose = self.latest[0].pose
        p, o = pose.position, pose.orientation
        position, rotation, _ = self.arm.jacobian()
        turn = rotation_error(rotation, quat_to_matrix(torch.tensor([[o.w, o.x, o.y, o.z]]).float()))
        step = torch.cat([torch.tensor([[p.x, p.y, p.z]]).float() - position, turn], -1)
        now = time.monotonic()
        periods = min(20.0, max(1.0, (now - self.updated) / PERIOD))  # as many as have passed: a test may be slow
        self.updated = now
        self.arm.move_tool((1 - 0.8**periods) * step[0])


class Servo(Controller):
    """MoveIt Servo: a message without a frame or with an old stamp is refused; it halts when messages end."""

    kind, topic = TWIST, "/servo_node/delta_twist_cmds"

    def refuses(self, message: Any) -> str:
        stamp = message.header.stamp
        if not message.header.frame_id:
            return "no frame"
        return "old stamp" if abs(time.time() - stamp.sec - 1e-9 * stamp.nanosec) > SERVO_TIMEOUT else ""

    def update(self) -> None:
        if self.latest is None or time.monotonic() - self.latest[1] > SERVO_TIMEOUT:
            return
        twist = self.latest[0].twist
        numbers = [getattr(part, axis) for part in (twist.linear, twist.angular) for axis in "xyz"]
        if math.hypot(*numbers) > 0:
            self.arm.move_tool(PERIOD * np.array(numbers))


KINDS: dict[str, type[Controller]] = {
    "position": Position, "velocity": Velocity, "trajectory": Trajectory, "impedance": Impedance, "servo": Servo,
    "broadcaster": Controller,
}  # fmt: skip
