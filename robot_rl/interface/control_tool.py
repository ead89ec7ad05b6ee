"""Controller of a tool: by inverse kinematics, or as poses or velocities."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from robot_rl.interface.command import Command, JointPositions, ToolPose, Twist
from robot_rl.interface.controller import Target
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.rotation import matrix_to_quat, quat_to_matrix, rotation_error, rotation_matrix
from robot_rl.interface.spec import Field, VectorSpec
from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, Interval, PositiveFloat, validate


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
