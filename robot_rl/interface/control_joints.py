"""Controllers of joints: set-points of springs about home, and positions of stiff arms."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from robot_rl.interface.command import Command, JointPositions
from robot_rl.interface.controller import Target
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.interface.state import ABSENT, RobotState, is_commanded
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, Interval, NonNegativeFloat, PositiveFloat, validate

NO_TOOL = (
    "a {} controller moves joints, not a tool, so neither a person nor a scripted demonstrator can steer it; use "
    "tool_delta, or add a command to the interface"
)
Angle = Annotated[float, Interval(ge=-math.pi, le=math.pi)]


@dataclass(frozen=True)
class JointOffsetConfig:
    """Joint control: actions are offsets, from the home posture, of the setpoints of the motors' springs."""

    produces: ClassVar[tuple[type[Command], ...]] = (JointPositions,)
    kind: Literal["joint_offset"] = "joint_offset"
    rate: PositiveFloat = 50.0
    """Rate of actions, Hz."""
    reach: PositiveFloat = 0.6
    """Largest offset of a joint that an action commands, rad."""
    swing: tuple[Angle, ...] = ()
    """Offset of each joint from home in the middle of its leg's swing, rad; empty: no gait, only actions' offsets."""
    swing_from: tuple[Fraction, ...] = ()
    """Gait phase at which the swing of each joint's leg starts; a swing lasts half a cycle."""
    stride: tuple[tuple[Angle, ...], ...] = ()
    """Offset of each joint at touchdown, rad per unit of each component of the velocity command; in stance the leg
    sweeps to the opposite offset. Empty: the gait steps in place."""

    def __post_init__(self) -> None:
        validate(self, "controller.")


class JointOffsetController:
    """Setpoint = home + swing(clock) + stride(clock, command) + action, clipped to the joint limits.

    While the velocity command is not zero, swing and stride form an open-loop gait, to which the policy adds balance
    (policies modulating trajectory generators: Iscen et al. 2018, arXiv 1910.02812). Feet in stance move at constant
    speed against the command. They already do so shortly before touchdown (swing-leg retraction: Seyfarth et al.
    2003). The robot's spec defines the springs' gains.
    """

    def __init__(self, robot: RobotSpec, config: JointOffsetConfig, command: type[Command] = JointPositions):
        if not robot.compliant:
            raise ValueError(f"robot {robot.name!r} has no joint stiffness and damping; joint_offset needs them")
        self.config, self.command = config, command
        farthest = max(max(j.high - q, q - j.low) for j, q in zip(robot.joints, robot.home, strict=True))
        if config.reach > farthest:
            raise ValueError(
                f"controller.reach is {config.reach:g} rad, but no joint of robot {robot.name!r} has more than "
                f"{farthest:g} rad from home to its limit"
            )
        reach = (config.reach,) * len(robot.joints)
        self.actions = VectorSpec((Field("joint_offset", robot.joint_names, "rad", tuple(-r for r in reach), reach),))
        self.twist_limit = torch.zeros(6)
        self.home = torch.tensor(robot.home)
        self.low, self.high = robot.limit("low"), robot.limit("high")
        for name, numbers, needed in (
            ("swing", config.swing, config.swing or config.stride),
            ("swing_from", config.swing_from, config.swing),
            ("stride", config.stride, config.stride),
        ):
            if len(numbers) != (len(robot.joints) if needed else 0):
                raise ValueError(f"controller.{name} has {len(numbers)} numbers for the {len(robot.joints)} joints")
        self.swing, self.swing_from = torch.tensor(config.swing), torch.tensor(config.swing_from)
        self.stride = torch.tensor(config.stride)

    def reference(self, count: int) -> Tensor:
        return ABSENT

    def gait(self, phase: Tensor, command: Tensor) -> Tensor:
        """Return the open-loop gait, offsets (n, joints) from home, rad, at phases (n, 1) of the cycle, 0 to 1, and for
        velocity commands (n, C)."""
        u = 2 * ((phase - self.swing_from) % 1.0)  # 0 to 1 in swing, 1 to 2 in stance
        up = (math.pi * u).sin().clamp_min(0).square()  # smooth at both ends, 0 in stance
        offset = up * self.swing
        if self.config.stride:
            # Linear from 1 to -1 in stance; the cubic in swing has the same speed at both ends.
            ahead = torch.where(u < 1, ((12 - 8 * u) * u - 2) * u - 1, 3 - 2 * u)
            offset = offset + ahead * (command[:, None] * self.stride).sum(-1)
        return offset

    def __call__(self, state: RobotState, action: Tensor) -> Target:
        posture = self.home
        if self.config.swing:
            posture = self.home + self.gait(state.phase, state.command) * is_commanded(state)[:, None]
        gripper = torch.zeros(len(action), 1, device=action.device)
        return Target(JointPositions((posture + action).clamp(self.low, self.high)), gripper)

    def hold_action(self, last: Tensor, gripper: Tensor) -> Tensor:
        return last

    def from_twist(self, twist: Tensor, gripper: Tensor, hold: Tensor | None = None) -> Tensor:
        raise ConfigError(NO_TOOL.format(self.config.kind))

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        raise ConfigError(NO_TOOL.format(self.config.kind))


@dataclass(frozen=True)
class JointPositionConfig:
    """Joint control of an arm: actions are positions of the joints, or steps from where they are measured."""

    produces: ClassVar[tuple[type[Command], ...]] = (JointPositions,)
    kind: Literal["joint_position"] = "joint_position"
    rate: PositiveFloat = 20.0
    """Rate of actions, Hz."""
    reach: Annotated[float, Interval(gt=0, le=2 * math.pi)] = math.pi
    """Largest distance of a commanded position from home, rad. An action of 0 is home."""
    step: NonNegativeFloat = 0.0
    """Largest step of a joint from its measured position in one action, rad; 0: actions are positions."""
    lead: Annotated[float, Interval(gt=0, le=math.pi)] = 0.2
    """Largest distance of a joint target from the measured joint position, rad; bounds contact forces."""

    def __post_init__(self) -> None:
        validate(self, "controller.")
        if self.step > self.lead:
            raise ValueError(f"controller.step is {self.step:g} rad, above controller.lead, {self.lead:g}")


class JointPositionController:
    """Target = action, or measured position + action, within `lead` of the measured position and the joint limits.

    Positions are in rad, with the distance between the fingers last, m. All joints are scaled alike, so a far target is
    approached along a straight line in joint space.
    """

    def __init__(self, robot: RobotSpec, config: JointPositionConfig, command: type[Command] = JointPositions):
        self.config, self.command = config, command
        self.width = robot.gripper.width if robot.gripper else 0.0
        steps = (config.step,) * len(robot.joints)
        least, most = ([q + side * config.reach for q in robot.home] for side in (-1, 1))
        fields = [
            Field("joint_delta", robot.joint_names, "rad", tuple(-s for s in steps), steps)
            if config.step
            else Field("joint_position", robot.joint_names, "rad", tuple(least), tuple(most))
        ]
        if robot.gripper:
            fields.append(Field("gripper", ("width",), "m", (0.0,), (self.width,)))
        self.actions = VectorSpec(tuple(fields))
        self.joints = len(robot.joints)
        self.twist_limit = torch.zeros(6)
        self.low, self.high = robot.limit("low"), robot.limit("high")

    def reference(self, count: int) -> Tensor:
        return ABSENT

    def __call__(self, state: RobotState, action: Tensor) -> Target:
        measured, asked = state.joint_position, action[:, : self.joints]
        move = asked if self.config.step else asked - measured
        move = move / (move.abs().amax(-1, keepdim=True) / self.config.lead).clamp_min(1)
        gripper = action[:, self.joints :] if self.width else action.new_zeros(len(action), 1)
        return Target(JointPositions((measured + move).clamp(self.low, self.high)), gripper)

    def hold_action(self, last: Tensor, gripper: Tensor) -> Tensor:
        joints = torch.zeros_like(last[:, : self.joints]) if self.config.step else last[:, : self.joints]
        return torch.cat([joints, 2 * gripper / self.width - 1], -1) if self.width else joints

    def from_twist(self, twist: Tensor, gripper: Tensor, hold: Tensor | None = None) -> Tensor:
        raise ConfigError(NO_TOOL.format(self.config.kind))

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        raise ConfigError(NO_TOOL.format(self.config.kind))
