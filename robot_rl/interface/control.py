"""From an action to joint targets: end-effector control by differential inverse kinematics, or offsets from home."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import Tensor

from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import rotation_error
from robot_rl.interface.spec import Field, RobotSpec, VectorSpec
from robot_rl.interface.state import RobotState, asked
from robot_rl.util.errors import UnknownName
from robot_rl.util.limits import Interval, Positive, Share, require


@dataclass
class JointTarget:
    """Where the joints and the gripper shall go within one control period."""

    position: Tensor
    """(n, J) rad."""
    gripper: Tensor
    """(n, 1) distance between the fingers, m."""


class Controller(Protocol):
    """Turns actions into joint targets; without a memory, so that control changes hands without a jump."""

    actions: VectorSpec

    def __call__(self, state: RobotState, action: Tensor) -> JointTarget:
        """Joint targets for physical actions (n, A) at measured states of n robots."""

    def still(self, action: Tensor, gripper: Tensor) -> Tensor:
        """Actions (n, A) in [-1, 1] of robots that hold what actions (n, A) and widths (n, 1), m, had asked of them."""


@dataclass(frozen=True)
class ToolDeltaConfig:
    """End-effector control: a position step of the tool, and the gripper, if there is one, shut or open."""

    kind: Literal["tool_delta"] = "tool_delta"
    rate: Positive = 20.0
    """Rate of actions, Hz."""
    step: Annotated[float, Interval(gt=0, le=1)] = 0.04
    """Largest displacement along an axis in one action, m."""
    damping: Positive = 0.05
    """Damping of the least-squares inverse: larger is slower and safer near singularities."""
    posture_gain: Share = 0.1
    """Share of the way back to the home posture per action, in the null space of the task."""
    lead: Annotated[float, Interval(gt=0, le=math.pi)] = 0.2
    """Largest distance of a joint target from the measured joint position, rad; bounds the force of a contact."""

    def __post_init__(self) -> None:
        require(self, "controller.")


class ToolDeltaController:
    """Damped-least-squares differential IK (Nakamura and Hanafusa 1986) with a null-space posture.

    A step is taken from the *measured* tool position: without an integrator in the loop, a servo that lags by
    several control periods, a delayed command or a person pushing the arm cannot wind it up. The tool keeps the
    orientation that it has at home. The controller has no memory, so control changes hands without a jump.

    The gripper shuts or opens as a whole, whichever is nearer to the width asked for: so do real ones, and a grasp
    holds with all its force however the policy trembles.
    """

    def __init__(self, robot: RobotSpec, config: ToolDeltaConfig):
        self.robot, self.config = robot, config
        self.kinematics = Kinematics(robot)
        assert robot.tool is not None  # or Kinematics would have refused the robot
        step, self.width = config.step, robot.gripper.width if robot.gripper else 0.0
        fields = [Field("tool_delta", ("x", "y", "z"), "m", (-step,) * 3, (step,) * 3, "base")]
        if robot.gripper:
            fields.append(Field("gripper", ("width",), "m", (0.0,), (self.width,)))
        self.actions = VectorSpec(tuple(fields))
        self.home = torch.tensor(robot.home)
        self.rotation = self.kinematics.forward(self.home[None])[1]
        self.low, self.high = robot.limit("low"), robot.limit("high")
        self.workspace = torch.tensor(robot.tool.workspace)

    def __call__(self, state: RobotState, action: Tensor) -> JointTarget:
        measured = state.joint_position
        position, rotation, jacobian = self.kinematics.jacobian(measured)
        goal = (position + action[:, :3]).clamp(self.workspace[0], self.workspace[1])
        error = torch.cat([goal - position, rotation_error(rotation, self.rotation)], -1)
        transpose = jacobian.transpose(1, 2)
        gram = jacobian @ transpose + self.config.damping**2 * torch.eye(6, device=action.device)
        posture = self.config.posture_gain * (self.home - measured)
        # J^+ (e - J p) + p: the task first, the posture in what remains.
        task = error[..., None] - jacobian @ posture[..., None]
        step = posture + (transpose @ torch.linalg.solve(gram, task)).squeeze(-1)
        # Shrunk as a whole, so that the tool slows down on its path instead of leaving it.
        target = measured + step / (step.abs().amax(-1, keepdim=True) / self.config.lead).clamp_min(1)
        # What is not a number stays so, for the shield to see.
        gripper = self.width * (action[:, 3:] > self.width / 2) + 0 * action[:, 3:]
        if not self.width:
            gripper = torch.zeros(len(action), 1, device=action.device)
        return JointTarget(torch.clamp(target, self.low, self.high), gripper)

    def still(self, action: Tensor, gripper: Tensor) -> Tensor:
        """No step of the tool, and the gripper, if there is one, as it was."""
        return self.actions.to_unit(torch.cat([torch.zeros_like(action[:, :3]), gripper], -1)[:, : action.shape[1]])


Angle = Annotated[float, Interval(ge=-math.pi, le=math.pi)]


@dataclass(frozen=True)
class JointOffsetConfig:
    """Joint control: a set-point of each motor's spring, as an offset from the home posture."""

    kind: Literal["joint_offset"] = "joint_offset"
    rate: Positive = 50.0
    """Rate of actions, Hz."""
    reach: Positive = 0.6
    """Largest offset that an action asks for, rad."""
    swing: tuple[Angle, ...] = ()
    """Offset of each joint from home at the top of its leg's swing, rad; empty: the policy alone moves the legs."""
    swing_from: tuple[Share, ...] = ()
    """Phase of the gait clock at which the leg of each joint begins its swing, which lasts half a cycle."""
    stride: tuple[tuple[Angle, ...], ...] = ()
    """Offset of each joint as its foot lands, rad per unit of every number of the command; the leg sweeps from there to
    the opposite while it stands. Empty: swings are up and down, and the policy alone walks."""

    def __post_init__(self) -> None:
        require(self, "controller.")


class JointOffsetController:
    """Set-point = home + swing(clock) + stride(clock, command) + action, inside the joint limits.

    With a swing and a stride the legs step as the command says while something is asked of the robot, and the policy
    turns that into a walk that keeps its balance (policies modulating trajectory generators: Iscen et al. 2018, arXiv
    1910.02812). Without a swing, legs that never leave the ground earn nothing for doing so: in trials a Go2 still
    stood after 0.9 million steps of learning. Feet on the ground move evenly against the command, and begin to just
    before they land (swing-leg retraction: Seyfarth et al. 2003). The springs' gains are the robot spec's.
    """

    def __init__(self, robot: RobotSpec, config: JointOffsetConfig):
        if not robot.compliant:
            raise ValueError(f"robot {robot.name!r} has no stiffness and damping of its joints: JointOffsetController")
        self.config = config
        farthest = max(max(j.high - q, q - j.low) for j, q in zip(robot.joints, robot.home, strict=True))
        if config.reach > farthest:
            raise ValueError(
                f"controller.reach is {config.reach:g} rad, but no joint of robot {robot.name!r} has more than "
                f"{farthest:g} rad from home to its limit"
            )
        reach = (config.reach,) * len(robot.joints)
        self.actions = VectorSpec((Field("joint_offset", robot.joint_names, "rad", tuple(-r for r in reach), reach),))
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

    def __call__(self, state: RobotState, action: Tensor) -> JointTarget:
        posture = self.home
        if self.config.swing:
            u = 2 * ((state.phase - self.swing_from) % 1.0)  # from 0 to 1 in the swing, to 2 on the ground
            up = (math.pi * u).sin().clamp_min(0).square()  # smooth at both ends, 0 on the ground
            offset = up * self.swing
            if self.config.stride:
                # From 1 to -1 on the ground; the cubic back has the same speed at both ends.
                ahead = torch.where(u < 1, ((12 - 8 * u) * u - 2) * u - 1, 3 - 2 * u)
                offset = offset + ahead * (state.command[:, None] * self.stride).sum(-1)
            posture = self.home + offset * asked(state)[:, None]
        return JointTarget(
            (posture + action).clamp(self.low, self.high), torch.zeros(len(action), 1, device=action.device)
        )

    def still(self, action: Tensor, gripper: Tensor) -> Tensor:
        """The same set-points."""
        return action


ControllerConfig = ToolDeltaConfig | JointOffsetConfig
_KINDS: dict[str, tuple[Any, Any]] = {
    "tool_delta": (ToolDeltaConfig, ToolDeltaController),
    "joint_offset": (JointOffsetConfig, JointOffsetController),
}


def controller_config(data: dict[str, Any]) -> ControllerConfig:
    """The config that `dataclasses.asdict` made `data` of."""
    kind = data.get("kind", "tool_delta")
    if kind not in _KINDS:
        raise UnknownName("controller", kind, _KINDS)
    config: ControllerConfig = _KINDS[kind][0](**{k: _frozen(v) for k, v in data.items()})
    return config


def _frozen(value: Any) -> Any:
    """Tuples for JSON's lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def build_controller(robot: RobotSpec, config: ControllerConfig) -> Controller:
    """The controller that the config describes."""
    controller: Controller = _KINDS[config.kind][1](robot, config)
    return controller
