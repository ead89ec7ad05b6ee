"""Limits on commands that are not joint positions: poses and velocities of a tool, velocities of a base."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from robot_rl.interface.command import BaseVelocity, Command, JointPositions, ToolPose, Twist
from robot_rl.interface.control import BaseVelocityConfig
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.rotation import (
    CONJUGATE,
    matrix_to_quat,
    quat_product,
    rotation_quat,
    rotation_vector,
)
from robot_rl.interface.shield import JointShield, Shield, ShieldConfig, approach
from robot_rl.interface.stopping import Motion

if TYPE_CHECKING:
    from robot_rl.interface.pipeline import Interface

UNIT = 0.1
"""Largest deviation of a quaternion's norm from 1."""
LEAD = 0.04, 0.15
"""Largest distance of a goal from the measured tool on the way home, m and rad."""
ARRIVED = 0.01, 0.05
"""Distance of the tool from its home pose at which an arm counts as there, m and rad."""
LATEST = 0.25
"""Time for which a goal that is a velocity may last, s: a control period and its time-out."""


class ToolShield:
    """Limits that poses and velocities of a tool share; rates are (n, 6), m/s and rad/s and their derivatives."""

    def __init__(self, robot: RobotSpec, config: ShieldConfig | None = None):
        self.config = config = config or ShieldConfig()
        self.kinematics = Kinematics(robot)  # raises for a robot without a tool
        tool = robot.tool
        assert tool is not None
        low, high = torch.tensor(tool.workspace)
        self.low, self.high = low - config.workspace_slack, high + config.workspace_slack
        # Limits per axis keep the norm of three axes within the tool's limit.
        per_axis = torch.tensor([3.0**-0.5])
        speeds = torch.tensor([tool.speed] * 3 + [tool.turn_speed] * 3)
        self.velocity = config.velocity * per_axis * speeds
        accelerations = torch.tensor([tool.acceleration] * 3 + [tool.turn_acceleration] * 3)
        self.acceleration = config.acceleration * per_axis * accelerations

    def _error(self, pose: Tensor, goal: Tensor) -> Tensor:
        """Return translations and rotation vectors (n, 6) from poses to goals (n, 7)."""
        turn = rotation_vector(quat_product(goal[:, 3:], pose[:, 3:] * CONJUGATE))
        return torch.cat([goal[:, :3] - pose[:, :3], turn], -1)

    def _pose(self, joints: Tensor) -> Tensor:
        position, rotation = self.kinematics.forward(joints)
        return torch.cat([position, matrix_to_quat(rotation)], -1)

    def _homeward(self, joints: Tensor, home: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Return measured poses (n, 7), the part (n, 6) of the way home that a goal leads, and whether it is done."""
        pose = self._pose(joints)
        error = self._error(pose, self._pose(home))
        parts = [part.norm(dim=-1, keepdim=True) for part in error.split(3, -1)]
        arrived = all(bool((part < near).all()) for part, near in zip(parts, ARRIVED, strict=True))
        shares = [(lead / part.clamp_min(lead)) for part, lead in zip(parts, LEAD, strict=True)]
        return pose, error * torch.minimum(*shares), arrived


def _moved(pose: Tensor, change: Tensor) -> Tensor:
    """Return poses (n, 7) after translations and rotation vectors (n, 6) in the base frame."""
    quat = quat_product(rotation_quat(change[:, 3:]), pose[:, 3:])
    return torch.cat([pose[:, :3] + change[:, :3], quat / quat.norm(dim=-1, keepdim=True)], -1)


class ToolPoseShield(ToolShield):
    """Limits on poses of the tool; set-points are (n, 7)."""

    refusals: tuple[str, ...] = ()

    def admit(
        self, goal: Tensor, previous: Tensor, joints: Tensor | None = None, motion: Motion | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        norm = goal[:, 3:].norm(dim=-1)
        finite = goal.isfinite().all(-1) & ((norm - 1).abs() < UNIT)
        goal = torch.where(finite[:, None], goal, previous)
        position = goal[:, :3].clamp(self.low, self.high)
        clipped = torch.cat([position, goal[:, 3:] / goal[:, 3:].norm(dim=-1, keepdim=True)], -1)
        return clipped, {"nonfinite": ~finite, "workspace": (position != goal[:, :3]).any(-1)}

    def follow(
        self, setpoint: Tensor, rate: Tensor, goal: Tensor, goal_rate: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        free = torch.full_like(setpoint[:, :3], torch.inf)
        room = (
            torch.cat([setpoint[:, :3] - self.low, free], -1), torch.cat([self.high - setpoint[:, :3], free], -1),
        )  # fmt: skip
        error = self._error(setpoint, goal)
        rate = approach(error, rate, goal_rate, self.velocity, self.acceleration, dt, room)
        return _moved(setpoint, rate * dt), rate

    def path(self, start: Tensor, goal: Tensor, share: float) -> tuple[Tensor, Tensor]:
        error = self._error(start, goal)
        return _moved(start, share * error), error

    def hold(self, joints: Tensor) -> Tensor:
        return self._pose(joints)

    def rest(self, setpoint: Tensor) -> Tensor:
        return setpoint

    def moving(self, setpoint: Tensor, rate: Tensor) -> bool:
        return float(rate.abs().max()) > 1e-5

    def mismatch(self, goal: Tensor, joints: Tensor, seconds: float, safety: SafetyConfig) -> bool:
        slack = safety.tool_mismatch * torch.tensor([1.0] * 3 + [2.0] * 3)
        return bool((self._error(self._pose(joints), goal).abs() > slack + seconds * self.velocity).any())

    def toward(self, joints: Tensor, home: Tensor) -> tuple[Tensor, bool]:
        pose, change, arrived = self._homeward(joints, home)
        return _moved(pose, change), arrived


class VelocityShield:
    """Limits on velocities; set-points and rates are (n, E)."""

    refusals: tuple[str, ...] = ()
    velocity: Tensor
    acceleration: Tensor

    def admit(
        self, goal: Tensor, previous: Tensor, joints: Tensor | None = None, motion: Motion | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        finite = goal.isfinite().all(-1)
        goal = torch.where(finite[:, None], goal, torch.zeros_like(goal))
        clipped = goal.clamp(-self.velocity, self.velocity)
        return clipped, {"nonfinite": ~finite, "speed": (clipped != goal).any(-1)}

    def follow(
        self, setpoint: Tensor, rate: Tensor, goal: Tensor, goal_rate: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        change = (goal - setpoint).clamp(-self.acceleration * dt, self.acceleration * dt)
        return (setpoint + change).clamp(-self.velocity, self.velocity), change / dt

    def path(self, start: Tensor, goal: Tensor, share: float) -> tuple[Tensor, Tensor]:
        return goal, torch.zeros_like(goal)  # a velocity holds for the whole control period

    def hold(self, joints: Tensor) -> Tensor:
        return joints.new_zeros(len(joints), len(self.velocity))

    def rest(self, setpoint: Tensor) -> Tensor:
        return torch.zeros_like(setpoint)

    def moving(self, setpoint: Tensor, rate: Tensor) -> bool:
        return bool(setpoint.any())

    def mismatch(self, goal: Tensor, joints: Tensor, seconds: float, safety: SafetyConfig) -> bool:
        return False


class TwistShield(VelocityShield, ToolShield):
    """Limits on velocities of the tool; the tool can always brake before it leaves the workspace."""

    def admit(
        self, goal: Tensor, previous: Tensor, joints: Tensor | None = None, motion: Motion | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        goal, events = super().admit(goal, previous)
        if joints is None:
            return goal, events
        position, (a, h) = self.kinematics.forward(joints)[0], (self.acceleration[:3], LATEST)
        # v for h seconds and then braking with a must fit: v h + v^2 / 2a = distance.
        reach = [(((room / a).clamp_min(0) * 2 + h * h).sqrt() - h) * a
                 for room in (position - self.low, self.high - position)]  # fmt: skip
        linear = goal[:, :3].clamp(-reach[0], reach[1])
        return torch.cat([linear, goal[:, 3:]], -1), events | {"workspace": (linear != goal[:, :3]).any(-1)}

    def toward(self, joints: Tensor, home: Tensor) -> tuple[Tensor, bool]:
        _, change, arrived = self._homeward(joints, home)
        return change / LATEST, arrived


class BaseVelocityShield(VelocityShield):
    """Limits on velocities of a mobile base, which are those of its controller's actions."""

    def __init__(self, config: ShieldConfig, controller: BaseVelocityConfig):
        self.config = config
        self.velocity = torch.tensor([controller.forward, controller.left, controller.turn])
        self.acceleration = self.velocity / controller.ramp

    def toward(self, joints: Tensor, home: Tensor) -> tuple[Tensor, bool]:
        return self.hold(joints), True  # a base has no home


def build_shield(robot: RobotSpec, interface: Interface, kind: type[Command]) -> Shield:
    """Return the shield of one kind of command."""
    config, controller = interface.shield, interface.controller
    builders: dict[type[Any], Callable[[], Shield]] = {
        JointPositions: lambda: JointShield(robot, config),
        ToolPose: lambda: ToolPoseShield(robot, config),
        Twist: lambda: TwistShield(robot, config),
    }
    if kind is BaseVelocity:
        assert isinstance(controller, BaseVelocityConfig)
        return BaseVelocityShield(config, controller)
    return builders[kind]()
