"""Controllers from actions to commands: to a tool (by IK, or as poses or velocities), to joints, to a base."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from robot_rl.interface.command import KINDS, BaseVelocity, Command, JointPositions, ToolPose, Twist, choose
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.rotation import matrix_to_quat, quat_to_matrix, rotation_error, rotation_matrix
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.interface.state import ABSENT, RobotState, is_commanded
from robot_rl.util.errors import ConfigError, UnknownName
from robot_rl.util.limits import Fraction, Interval, PositiveFloat, validate


@dataclass
class Target:
    """Command and gripper target at the end of a control period."""

    command: Command
    gripper: Tensor
    """(n, 1) distance between the fingers, m."""
    reference: Tensor = ABSENT
    """(n, R) controller's reference for the next control period, see `RobotState.reference`."""


class Controller(Protocol):
    """Convert actions to commands. Controllers are stateless, so control can switch between a policy and a person
    without a jump. The caller keeps `reference`, the only value that persists between control periods."""

    command: type[Command]
    """Kind of the command that the controller gives."""
    actions: VectorSpec
    twist_limit: Tensor
    """(6,) largest translation along, m, and rotation about, rad, the base frame's axes per action; 0: uncontrolled."""

    @property
    def config(self) -> "ControllerConfig":
        """Return the controller's config."""

    def reference(self, count: int) -> Tensor:
        """Return references (count, R) for the first control period; ABSENT for a controller without a reference."""

    def __call__(self, state: RobotState, action: Tensor) -> Target:
        """Return targets for physical actions (n, A) and measured states of n robots."""

    def hold_action(self, last: Tensor, gripper: Tensor) -> Tensor:
        """Return actions (n, A) in [-1, 1] that hold position. `last`: (n, A) previous actions; `gripper`: (n, 1)
        target distance between the fingers, m."""

    def from_twist(self, twist: Tensor, gripper: Tensor, hold: Tensor | None = None) -> Tensor:
        """Return actions (n, A), clipped to [-1, 1], that move the tool by a twist; NaN values stay NaN.

        Args:
            twist: (n, 6) translation x y z and rotation vector x y z in the base frame, in [-1, 1] relative to
                `twist_limit`; uncontrolled directions are ignored.
            gripper: (n, 1) from -1, closed, to 1, open; 0 keeps the gripper of `hold`.
            hold: (n, A) the result of `hold_action`; None if no gripper value is 0.

        Raises:
            ConfigError: the controller does not move a tool.
        """

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Invert `from_twist`: return the twist (n, 6) and gripper (n, 1) of actions (n, A). Uncontrolled directions of
        the twist are 0.

        Raises:
            ConfigError: the controller does not move a tool.
        """


@dataclass(frozen=True)
class ToolDeltaConfig:
    """End-effector control: an action displaces the tool and, if the robot has a gripper, opens or closes it."""

    produces: ClassVar[tuple[type[Command], ...]] = (JointPositions, ToolPose, Twist)
    kind: Literal["tool_delta"] = "tool_delta"
    rate: PositiveFloat = 20.0
    """Rate of actions, Hz."""
    step: Annotated[float, Interval(gt=0, le=1)] = 0.04
    """Largest displacement of the tool along an axis of the base frame in one action, m."""
    turn: Annotated[float, Interval(ge=0, le=0.5)] = 0.0
    """Largest rotation of the tool about an axis of the base frame in one action, rad; 0: see `orientation`."""
    orientation: Literal["home", "free"] = "home"
    """Orientation of the tool without `turn`: kept as at home, or whatever the position leaves, for arms of fewer than
    six joints; `posture_gain` then draws it home."""
    damping: PositiveFloat = 0.05
    """Damping of the Jacobian's least-squares inverse; larger values make motion slower, but more stable near
    singularities."""
    posture_gain: Fraction = 0.1
    """Share of the distance to the home posture that each action covers in the Jacobian's null space."""
    lead: Annotated[float, Interval(gt=0, le=math.pi)] = 0.2
    """Largest distance of a joint target from the measured joint position, rad; bounds contact forces."""

    def __post_init__(self) -> None:
        validate(self, "controller.")
        if self.turn and self.orientation == "free":
            raise ValueError("controller.turn commands an orientation, which controller.orientation='free' leaves open")


class ToolDeltaController:
    """Damped-least-squares differential IK (Nakamura and Hanafusa 1986), drawn to the home posture in the null space.

    Translations are relative to the *measured* tool position. There is no integrator, so lagging servos, delayed
    commands and a person pushing the arm cause no wind-up.

    Without `turn` the tool keeps its home orientation, unless it is free. With `turn`, actions rotate a reference
    orientation, a unit quaternion w x y z in the base frame. The reference starts at the home orientation and stays
    within `turn` of the measured orientation, which prevents wind-up. As in robosuite's OSC_POSE, only actions change
    the reference, so errors do not accumulate.

    The gripper only opens or closes fully, whichever is closer to the action's width, so noise does not loosen a grasp.

    For robots whose drivers take poses or velocities of the tool, the same goal is given as such, without IK.
    """

    def __init__(self, robot: RobotSpec, config: ToolDeltaConfig, command: type[Command] = JointPositions):
        self.robot, self.config, self.command = robot, config, command
        if config.orientation == "free" and command is not JointPositions:
            raise ConfigError("a tool_delta controller with a free orientation gives joint positions only")
        self.kinematics = Kinematics(robot)
        assert robot.tool is not None  # checked by Kinematics
        step, turn, self.width = config.step, config.turn, robot.gripper.width if robot.gripper else 0.0
        fields = [Field("tool_delta", ("x", "y", "z"), "m", (-step,) * 3, (step,) * 3, "base")]
        if turn:
            fields.append(Field("tool_turn", ("x", "y", "z"), "rad", (-turn,) * 3, (turn,) * 3, "base"))
        self.moves = 6 if turn else 3
        """Number of action dimensions without the gripper."""
        if robot.gripper:
            fields.append(Field("gripper", ("width",), "m", (0.0,), (self.width,)))
        self.actions = VectorSpec(tuple(fields))
        self.twist_limit = torch.tensor([step] * 3 + [turn] * 3)
        self.home = torch.tensor(robot.home)
        self.rotation = self.kinematics.forward(self.home[None])[1]
        self.low, self.high = robot.limit("low"), robot.limit("high")
        self.workspace = torch.tensor(robot.tool.workspace)

    def reference(self, count: int) -> Tensor:
        """Return the tool's home orientation (count, 4), w x y z; ABSENT if `turn` is 0."""
        return matrix_to_quat(self.rotation).repeat(count, 1) if self.config.turn else ABSENT

    def __call__(self, state: RobotState, action: Tensor) -> Target:
        measured = state.joint_position
        position, rotation, jacobian = self.kinematics.jacobian(measured)
        goal = (position + action[:, :3]).clamp(self.workspace[0], self.workspace[1])
        aim, reference = self.rotation, ABSENT
        if self.config.turn:
            aim = self._aim(state.reference, rotation, action[:, 3:6])
            reference = matrix_to_quat(aim)
        error = torch.cat([goal - position, rotation_error(rotation, aim)], -1)
        width = action[:, self.moves :]
        gripper = self.width * (width > self.width / 2) + 0 * width  # keeps NaN, for the shield to reject
        if not self.width:
            gripper = torch.zeros(len(action), 1, device=action.device)
        return Target(self._command(measured, jacobian, action, goal, aim, error), gripper, reference)

    def _command(
        self, measured: Tensor, jacobian: Tensor, action: Tensor, goal: Tensor, aim: Tensor, error: Tensor
    ) -> Command:
        """Return the command that moves the tool to positions `goal` (n, 3) and orientations `aim` (n, 3, 3), which are
        `error` (n, 6) away."""
        if self.command is ToolPose:
            return ToolPose(torch.cat([goal, matrix_to_quat(aim).expand(len(goal), 4)], -1))
        if self.command is Twist:
            return Twist(error * self.config.rate)
        if self.config.orientation == "free":
            jacobian, error = jacobian[:, :3], error[:, :3]
        # No posture term without motion: damping makes the null space inexact, and holding would drift home.
        moving = (action[:, : self.moves] != 0).any(-1, keepdim=True)
        posture = self.config.posture_gain * moving * (self.home - measured)
        if self.config.turn:
            # Little damping in this projection: more would let the posture term move a tool turned away from home.
            posture = posture - _inverse(jacobian, _times(jacobian, posture), 1e-3)
            step = posture + _inverse(jacobian, error, self.config.damping)
        else:
            # J^+ (e - J p) + p: task, with the posture in its null space.
            step = posture + _inverse(jacobian, error - _times(jacobian, posture), self.config.damping)
        # One scale for all joints, so the tool slows down but stays on its path.
        target = measured + step / (step.abs().amax(-1, keepdim=True) / self.config.lead).clamp_min(1)
        return JointPositions(torch.clamp(target, self.low, self.high))

    def _aim(self, reference: Tensor, rotation: Tensor, turn: Tensor) -> Tensor:
        """Return target orientations (n, 3, 3): the reference (n, 4), brought within `config.turn` of the measured
        `rotation` (n, 3, 3), then rotated by the rotation vector `turn` (n, 3)."""
        lead = rotation_error(rotation, quat_to_matrix(reference))
        lead = lead / (lead.norm(dim=-1, keepdim=True) / self.config.turn).clamp_min(1)
        return rotation_matrix(turn) @ rotation_matrix(lead) @ rotation

    def hold_action(self, last: Tensor, gripper: Tensor) -> Tensor:
        moves = last.new_zeros(len(last), self.moves)
        return self.actions.to_unit(torch.cat([moves, gripper], -1)[:, : self.actions.size])

    def from_twist(self, twist: Tensor, gripper: Tensor, hold: Tensor | None = None) -> Tensor:
        fingers = gripper[:, : self.actions.size - self.moves]
        if hold is not None:
            fingers = torch.where(fingers == 0, hold[:, self.moves :], fingers)
        return torch.cat([twist[:, : self.moves], fingers], -1).clamp(-1, 1)

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        twist, gripper = action.new_zeros(len(action), 6), action.new_zeros(len(action), 1)
        twist[:, : self.moves] = action[:, : self.moves]
        if self.width:
            gripper = action[:, self.moves :]
        return twist, gripper


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None]).squeeze(-1)


def _inverse(jacobian: Tensor, vector: Tensor, damping: float) -> Tensor:
    """Return J^T (J J^T + damping^2)^-1 v (n, J), the damped least-squares solution for J (n, D, J) and v (n, D)."""
    transpose = jacobian.transpose(1, 2)
    gram = jacobian @ transpose + damping**2 * torch.eye(jacobian.shape[1], device=jacobian.device)
    return (transpose @ torch.linalg.solve(gram, vector[..., None])).squeeze(-1)


NO_TOOL = (
    "a joint_offset controller moves joints, not a tool, so a person cannot override the policy; use tool_delta, or "
    "add a command to the interface"
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
        raise ConfigError(NO_TOOL)

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        raise ConfigError(NO_TOOL)


@dataclass(frozen=True)
class BaseVelocityConfig:
    """Control of a mobile base: actions are its velocities."""

    produces: ClassVar[tuple[type[Command], ...]] = (BaseVelocity,)
    kind: Literal["base_velocity"] = "base_velocity"
    rate: PositiveFloat = 10.0
    """Rate of actions, Hz."""
    forward: PositiveFloat = 0.5
    """Largest speed forward and backward, m/s."""
    left: Annotated[float, Interval(ge=0, le=10)] = 0.0
    """Largest speed to the left and to the right, m/s; 0 for a base that cannot move sideways."""
    turn: PositiveFloat = 1.0
    """Largest angular velocity, rad/s."""
    ramp: PositiveFloat = 0.5
    """Shortest time from standing to full speed, s."""

    def __post_init__(self) -> None:
        validate(self, "controller.")


class BaseVelocityController:
    """Actions are velocities of the base; a person commands them with the stick that steers."""

    def __init__(self, robot: RobotSpec, config: BaseVelocityConfig, command: type[Command] = BaseVelocity):
        self.config, self.command = config, command
        top = (config.forward, config.left, config.turn)
        axes = [k for k, speed in enumerate(top) if speed > 0]
        names, units = ("x", "y", "yaw"), ("m/s", "m/s", "rad/s")
        fields = [Field("base_velocity", (names[k],), units[k], (-top[k],), (top[k],), "base") for k in axes]
        self.actions = VectorSpec(tuple(fields))
        self.twist_limit = torch.zeros(6)
        self.axes = [(0, 1, 5)[k] for k in axes]
        """Component of a twist that each action commands."""
        self.twist_limit[self.axes] = torch.tensor([top[k] for k in axes]) / config.rate
        self.columns = axes

    def reference(self, count: int) -> Tensor:
        return ABSENT

    def __call__(self, state: RobotState, action: Tensor) -> Target:
        velocity = action.new_zeros(len(action), 3)
        velocity[:, self.columns] = action
        return Target(BaseVelocity(velocity), action.new_zeros(len(action), 1))

    def hold_action(self, last: Tensor, gripper: Tensor) -> Tensor:
        return torch.zeros_like(last)

    def from_twist(self, twist: Tensor, gripper: Tensor, hold: Tensor | None = None) -> Tensor:
        return twist[:, self.axes].clamp(-1, 1)

    def to_twist(self, action: Tensor) -> tuple[Tensor, Tensor]:
        twist = action.new_zeros(len(action), 6)
        twist[:, self.axes] = action
        return twist, action.new_zeros(len(action), 1)


ControllerConfig = ToolDeltaConfig | JointOffsetConfig | BaseVelocityConfig
_KINDS: dict[str, tuple[Any, Any]] = {
    "tool_delta": (ToolDeltaConfig, ToolDeltaController),
    "joint_offset": (JointOffsetConfig, JointOffsetController),
    "base_velocity": (BaseVelocityConfig, BaseVelocityController),
}


def controller_config(data: dict[str, Any]) -> ControllerConfig:
    """Restore a controller config from the result of `dataclasses.asdict`."""
    kind = data.get("kind", "tool_delta")
    if kind not in _KINDS:
        raise UnknownName("controller", kind, _KINDS)
    config: ControllerConfig = _KINDS[kind][0](**{k: _frozen(v) for k, v in data.items()})
    return config


def _frozen(value: Any) -> Any:
    """Convert a list and the lists in it to tuples; return other values unchanged."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def kind_for(config: ControllerConfig, accepted: tuple[type[Command], ...], who: str) -> type[Command]:
    """Return the kind of command that a controller gives and `who` accepts; ConfigError if there is none."""
    kind = choose(config.produces, accepted)
    if kind is None:
        gives, takes = (" or ".join(KINDS[k] for k in kinds) for kinds in (config.produces, accepted))
        raise ConfigError(
            f"{who} takes {takes}, but a {config.kind} controller, with which this policy was trained, gives {gives}: "
            "use another driver (`driver` in the robot's spec), or a policy with another controller"
        )
    return kind


def build_controller(
    robot: RobotSpec, config: ControllerConfig, command: type[Command] = JointPositions
) -> Controller:
    """Return the controller whose targets are commands of the kind `command`."""
    controller: Controller = _KINDS[config.kind][1](robot, config, command)
    return controller
